#!/usr/bin/env python3
"""What results.py and its parts do with small inputs: merging, verdicts, plots. The committed files themselves are checked by
results.py --check."""
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

import results
import results_file
import results_plot

ABOUT = "2026-01-31T00:00:00Z | c%d | a machine | bench b"


def figure(floor="2", aim="3", better="more", unit="x", name="f", meaning="m", head=""):
    return results.Figure({"bench": "b", "figure": name, "meaning": meaning, "unit": unit, "better": better,
                           "floor": floor, "aim": aim, "head": head})


def some(run, **values):
    r = results_file.Results("b")
    r.runs = [ABOUT % run]
    for name, value in values.items():
        r.rows["figure", name] = dict(zip(results_file.HEAD, ["figure", name, "", str(value), "", "", "", "", 1]))
    return r


class Files(unittest.TestCase):
    def test_newer_rows_replace_older_ones_and_runs_without_rows_go(self):
        merged = results_file.merge(some(1, a=1, b=2), some(2, b=3, c=4))
        self.assertEqual([merged.value(n) for n in "abc"], [1, 3, 4])
        self.assertEqual([merged.about(r)[1] for r in merged.rows.values()], ["c1", "c2", "c2"])
        self.assertEqual(results_file.merge(merged, some(3, a=0)).runs, [ABOUT % 2, ABOUT % 3])

    def test_what_was_written_is_read_back(self):
        with tempfile.TemporaryDirectory() as tmp:
            path = pathlib.Path(tmp) / "b.csv"
            results_file.write(path, some(1, **{"x, \"y\"": 1.5}))
            self.assertEqual(results_file.read(path).rows, some(1, **{"x, \"y\"": 1.5}).rows)

    def test_damaged_files_are_refused(self):
        head = "# run 1 | d | c | m | b\n" + ",".join(results_file.HEAD) + "\n"
        with tempfile.TemporaryDirectory() as tmp:
            path = pathlib.Path(tmp) / "b.csv"
            for text in ("a,b\n1,2\n", head + "figure,a,,1,,,,,2\n", head + "figure,a,,1\n", head + "figure,a,,x,,,,,1\n",
                         head.replace("run 1", "run 2"), "", "\0\0", head + "figure,a,,nan,,,,,1\n",
                         head + "figure,a,,1,,,,,1.5\n", head + 'figure,"a', head + "figure,\xff,,1,,,,,1\n"):
                path.write_bytes(text.encode("latin-1"))
                with self.assertRaisesRegex(ValueError, "b.csv", msg=text):
                    results_file.read(path)

    def test_a_row_has_the_percentiles_of_its_samples(self):
        run = results_file.Run("b", [])
        run.row("r", "s", [4, 1, 3, 2])
        self.assertEqual([run.results.rows["row", "r"][k] for k in ("median", "p10", "p90", "n")], ["2.5", "1", "4", 4])


class Figures(unittest.TestCase):
    def test_verdicts_follow_the_direction(self):
        self.assertEqual([figure().verdict(v) for v in (1.9, 2, 3)], ["**below**", "floor", "aim"])
        less = figure("1.15", "1.05", "less")
        self.assertEqual([less.verdict(v) for v in (1.2, 1.15, 1.0)], ["**below**", "floor", "aim"])
        self.assertEqual(figure("", "").verdict(1), "")

    def test_a_value_is_not_rounded_over_its_bound(self):
        self.assertEqual(figure("0.98", "1.1").show(0.9796), "0.9796")
        self.assertEqual(figure("0.95", "0.99").show(0.955), "0.955")
        self.assertEqual(figure("5", "1", "less", "s").show(0.17), "0.17 s")

    def test_ratios_to_the_floor_grow_with_what_is_better(self):
        self.assertEqual(figure().ratio(4), 2)
        self.assertEqual(figure("5", "1", "less").ratio(2.5), 2)
        self.assertIsNone(figure("0", "0", "less").ratio(0))

    def test_a_figure_without_a_row_is_told_as_not_measured(self):
        self.assertIn("not measured", results.figure_cells(figure(), some(1, other=1), results.Runs()))

    def test_the_section_is_replaced_and_nothing_else(self):
        text = f"a\n{results.BEGIN}\nold\n{results.END}\nb\n"
        self.assertEqual(results.replace_section(text, "new"), text.replace("old", "new"))
        with self.assertRaises(ValueError):
            results.replace_section("a", "new")


class Headlines(unittest.TestCase):
    def test_the_section_holds_headlines_only_and_the_page_holds_all(self):
        groups = results.in_order([figure(name="a", meaning="first", head="yes"), figure(name="c", meaning="second")],
                                  {"b": some(1, a=2, c=3)})
        section, page = results.section(groups, {}), results.bench_page(groups, {"b": {}})
        self.assertIn("| `bench b` | first | 2 |", section)
        self.assertNotIn("second", section)
        self.assertIn("| `a` | first | 2 |", page)
        self.assertIn("| `c` | second | 3 |", page)

    def test_the_column_is_yes_or_empty(self):
        self.assertEqual([figure(head=h).head for h in ("yes", "", None)], [True, False, False])
        with self.assertRaises(KeyError):
            figure(head="no")

    def test_runs_are_told_by_machine(self):
        runs, both = results.Runs(), results_file.merge(some(1, a=1), some(2, c=1))
        for row in both.rows.values():
            runs.number(both, row)
        self.assertEqual(runs.told(), "Runs on a machine: 1: `c1`, 2026-01-31; 2: `c2`, 2026-01-31.")


class Patterns(unittest.TestCase):
    def pattern(self, **more):
        return figure("", "", **{"name": "v*_of_*", "meaning": "* rows, * tokens", **more})

    def test_a_pattern_gives_a_meaning_to_what_it_matches_and_is_no_row_itself(self):
        told = results.of_bench("b", [self.pattern(), figure(name="v8_of_2k")], some(1, v8_of_2k=1, v16_of_4k=2))
        self.assertEqual([(f.name, f.meaning) for f in told], [("v8_of_2k", "m"), ("v16_of_4k", "16 rows, 4k tokens")])
        self.assertEqual(results.of_bench("b", [self.pattern()], None), [])
        self.assertIsNone(self.pattern().named("v8_of_2k_more"))

    def test_a_measured_figure_without_a_meaning_is_refused(self):
        with self.assertRaisesRegex(ValueError, "b.csv: other has no line"):
            results.of_bench("b", [self.pattern(), figure(name="a")], some(1, other=1))

    def test_patterns_that_cannot_be_told_are_refused(self):
        for wrong in ({"meaning": "* rows"}, {"head": "yes"}):
            with self.assertRaises(ValueError, msg=wrong):
                self.pattern(**wrong)


class Plots(unittest.TestCase):
    def parse(self, svg):
        return xml.etree.ElementTree.fromstring(svg)

    def test_bars_are_well_formed_and_hold_every_row(self):
        svg = results_plot.bars("t & t", [("a<b", "1.2", 1.2, 1.5), ("c", "0.5", 0.5, None)])
        words = [e.text for e in self.parse(svg).iter() if e.text]
        self.assertTrue({"t & t", "a<b", "c", "1.2", "0.5"} <= set(words))

    def test_lines_have_a_tick_for_every_length(self):
        spec = results.Lines("b", "x.svg", "t", "y", r"(?P<series>\w+) (?P<x>\d+k?)")
        svg = spec.draw(some(1, **{"ours 512": 3, "ours 2k": 2, "ours 8k": 1}))
        words = [e.text for e in self.parse(svg).iter() if e.text]
        self.assertTrue({"512", "2048", "8192", "ours"} <= set(words))
        self.assertIsNone(spec.draw(some(1, other=1)))


if __name__ == "__main__":
    unittest.main()
