/* The policy is a pure function: what is worth less a byte goes first, within the rules of classes and pins. */
#include "support/vc_test.h"

#include "evict.h"

Test(evict, uses_halve_with_each_half_life_and_never_grow_by_waiting)
{
    cr_assert_eq(cs_evict_decay(1024, 100, 100), 1024);
    cr_assert_eq(cs_evict_decay(1024, 100, 100 + CS_EVICT_HALF_LIFE_S), 512);
    cr_assert_eq(cs_evict_decay(1024, 100, 100 + 2 * CS_EVICT_HALF_LIFE_S), 256);
    cr_assert_eq(cs_evict_decay(1024, 0, UINT32_MAX), 0);
    cr_assert_eq(cs_evict_decay(1024, 200, 100), 1024); /* a clock that jumped back */
    uint16_t last = UINT16_MAX;
    for (uint32_t t = 0; t < 20 * CS_EVICT_HALF_LIFE_S; t += 97) {
        uint16_t now = cs_evict_decay(UINT16_MAX, 0, t);
        cr_assert_leq(now, last);
        last = now;
    }
}

Test(evict, a_touch_counts_one_use_and_saturates)
{
    uint16_t freq = 0;
    freq = cs_evict_touch(freq, 0, 0);
    cr_assert_eq(freq, CS_EVICT_FREQ_ONE);
    for (int i = 0; i < 1000; i++)
        freq = cs_evict_touch(freq, 0, 0);
    cr_assert_eq(freq, UINT16_MAX);
}

Test(evict, worth_follows_use_depth_and_the_chain)
{
    double once = cs_evict_object_worth(256, 0, 0, false, 0);
    cr_assert_gt(cs_evict_object_worth(512, 0, 0, false, 0), once);
    cr_assert_gt(cs_evict_object_worth(256, 0, 500, false, 0), once); /* deeper: costs more to compute again */
    cr_assert_lt(cs_evict_object_worth(256, 0, 0, false, 10000), once);
    cr_assert_gt(cs_evict_object_worth(0, 0, 0, false, UINT32_MAX), 0);
    cr_assert_eq(cs_evict_object_worth(65535, 0, 3, true, 0), 0);
}

Test(evict, the_least_worth_a_byte_is_the_victim)
{
    cs_evict_segment_t s[] = {{.id = 0, .is_full_copy = true, .bytes = 100, .worth = 5},
                              {.id = 1, .is_full_copy = true, .bytes = 400, .worth = 8},
                              {.id = 2, .is_full_copy = true, .bytes = 100, .worth = 3}};
    cr_assert_eq(cs_evict_pick(s, 3), 1);
    s[1].is_kept = true;
    cr_assert_eq(cs_evict_pick(s, 3), 2);
    s[2].is_kept = true;
    cr_assert_eq(cs_evict_pick(s, 3), 0);
    s[0].is_kept = true;
    cr_assert_eq(cs_evict_pick(s, 3), 3);
    cr_assert_eq(cs_evict_pick(s, 0), 0);
}

Test(evict, full_copies_go_before_compressed_ones_and_empty_files_before_all)
{
    cs_evict_segment_t s[] = {{.is_full_copy = false, .bytes = 100, .worth = 1},
                              {.is_full_copy = true, .bytes = 100, .worth = 1000},
                              {.is_full_copy = false, .bytes = 100, .worth = 0}};
    cr_assert_eq(cs_evict_pick(s, 3), 2);
    cr_assert_eq(cs_evict_pick(s, 2), 1);
}

Test(evict, the_order_of_candidates_does_not_matter)
{
    cs_evict_segment_t s[8];
    for (uint32_t i = 0; i < 8; i++)
        s[i] = (cs_evict_segment_t){.id = i, .is_full_copy = i % 2, .bytes = 100 + i, .worth = (i * 5) % 8 + 1};
    uint32_t victim = s[cs_evict_pick(s, 8)].id;
    for (uint32_t r = 0; r < 8; r++) {
        cs_evict_segment_t first = s[0];
        for (int i = 0; i < 7; i++)
            s[i] = s[i + 1];
        s[7] = first;
        cr_assert_eq(s[cs_evict_pick(s, 8)].id, victim);
    }
}
