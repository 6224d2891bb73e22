/* vericachectl. */
#include <unistd.h>

#include "ctl.h"

int main(int argc, char **argv) { return ctl_run(argc, argv, environ, stdout, stderr); }
