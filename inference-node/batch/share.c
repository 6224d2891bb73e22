/* The line through iteration times: decayed normal equations, solved anew each time (five unknowns). */
#include "batch/share.h"

#include <math.h>
#include <string.h>

#define KEEP 0.98   /* of the sums per iteration */
#define RIDGE 0.001 /* of a diagonal element: a load that never varied has its time shared out in any way */

void node_share_init(node_share_t *s) { memset(s, 0, sizeof *s); }

/* Gauss without pivoting, which a positive definite matrix does not need; rows of loads never seen are left out. */
static void solve(node_share_t *s)
{
    double m[NODE_SHARE_N][NODE_SHARE_N + 1];
    for (int i = 0; i < NODE_SHARE_N; i++) {
        memcpy(m[i], s->a[i], sizeof s->a[i]);
        m[i][i] = s->a[i][i] > 0 ? s->a[i][i] * (1 + RIDGE) : 1;
        m[i][NODE_SHARE_N] = s->y[i];
    }
    for (int k = 0; k < NODE_SHARE_N; k++)
        for (int i = k + 1; i < NODE_SHARE_N; i++) {
            double f = m[i][k] / m[k][k];
            for (int j = k; j <= NODE_SHARE_N; j++)
                m[i][j] -= f * m[k][j];
        }
    for (int k = NODE_SHARE_N; k-- > 0;) {
        double v = m[k][NODE_SHARE_N];
        for (int j = k + 1; j < NODE_SHARE_N; j++)
            v -= m[k][j] * s->us[j];
        s->us[k] = v / m[k][k];
        if (!isfinite(s->us[k]) || s->us[k] < 0)
            s->us[k] = 0;
    }
}

void node_share_learn(node_share_t *s, const node_share_load_t *whole, double us)
{
    for (int i = 0; i < NODE_SHARE_N; i++) {
        s->y[i] = s->y[i] * KEEP + whole->n[i] * us;
        for (int j = 0; j < NODE_SHARE_N; j++)
            s->a[i][j] = s->a[i][j] * KEEP + whole->n[i] * whole->n[j];
    }
    solve(s);
}

double node_share_us(const node_share_t *s, const node_share_load_t *load)
{
    double us = 0;
    for (int i = 0; i < NODE_SHARE_N; i++)
        us += s->us[i] * load->n[i];
    return us;
}
