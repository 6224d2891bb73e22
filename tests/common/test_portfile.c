/* The file that says where a program listens: what is in it, and that a failure leaves no trace. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/file.h"
#include "support/tmpdir.h"
#include "support/vc_test.h"
#include "vc/mem.h"
#include "vc/portfile.h"

static void expect(const char *path, const char *want)
{
    char *text = (char *)vt_file_read(path, NULL);
    cr_assert_str_eq(text, want);
    vc_free(text);
}

Test(portfile, has_the_real_port_and_whatever_else_there_is_to_tell)
{
    vt_tmpdir_t dir;
    vt_tmpdir_create(&dir);
    const char *path = vt_tmpdir_path(&dir, "port");
    cr_assert_eq(vc_portfile_write(path, "127.0.0.1:0", 4711, "", NULL), VC_OK);
    expect(path, "4711\nlisten=127.0.0.1:4711\n");
    cr_assert_eq(vc_portfile_write(path, "[::1]:7070", 7070, "data=none\n", NULL), VC_OK);
    expect(path, "7070\nlisten=[::1]:7070\ndata=none\n");
    cr_assert_neq(access(vt_tmpdir_path(&dir, "port.new"), F_OK), 0);
    vt_tmpdir_remove(&dir);
}

Test(portfile, a_failure_names_the_file_and_leaves_nothing)
{
    vt_tmpdir_t dir;
    vc_err_t err = {0};
    static char longest[5000];
    vt_tmpdir_create(&dir);
    cr_assert_eq(vc_portfile_write(vt_tmpdir_path(&dir, "absent/port"), "127.0.0.1:0", 1, "", &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "absent/port"), "%s", err.msg);
    const char *taken = vt_tmpdir_path(&dir, "taken");
    cr_assert_eq(mkdir(taken, 0700), 0); /* nothing is renamed over a directory */
    cr_assert_neq(vc_portfile_write(taken, "127.0.0.1:0", 1, "", &err), VC_OK);
    cr_assert_neq(access(vt_tmpdir_path(&dir, "taken.new"), F_OK), 0);
    const char *pipe_path = vt_tmpdir_path(&dir, "pipe");
    struct stat st;
    cr_assert_eq(mkfifo(pipe_path, 0600), 0); /* nor over a pipe or a device */
    cr_assert_eq(vc_portfile_write(pipe_path, "127.0.0.1:0", 1, "", &err), VC_ERR_INVALID);
    cr_assert_not_null(strstr(err.msg, "no regular file"), "%s", err.msg);
    cr_assert(stat(pipe_path, &st) == 0 && S_ISFIFO(st.st_mode));
    memset(longest, 'a', sizeof(longest) - 1);
    cr_assert_eq(vc_portfile_write(longest, "127.0.0.1:0", 1, "", &err), VC_ERR_INVALID);
    vt_tmpdir_remove(&dir);
}
