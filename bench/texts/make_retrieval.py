#!/usr/bin/env python3
"""Writes retrieval.txt and what is asked behind its first 2,048 and 4,096 tokens: a register of made-up records in sentences,
then questions about single records, answered, and quotations of whole ones. Everything comes from the word lists below
and a fixed seed, so the files can be made again byte for byte. Run in this folder."""
import random

NAMES = ["Albrecht", "Beaumont", "Castellano", "Dvorak", "Eriksen", "Fontaine", "Gallagher", "Hashimoto", "Ivanova", "Jansen",
         "Kowalski", "Lindqvist", "Moreau", "Nakamura", "Okafor", "Petrov", "Quintero", "Rasmussen", "Sorensen", "Takahashi",
         "Ulrich", "Vasquez", "Whitfield", "Yilmaz", "Zimmermann", "Abernathy", "Brandt", "Carvalho", "Delacroix", "Engström",
         "Ferrari", "Gruber", "Halvorsen", "Ibarra", "Jablonski", "Keller", "Lombardi", "McAllister", "Novak", "Ortega",
         "Papadakis", "Reyes", "Schneider", "Thornton", "Urbanek", "Verhoeven", "Weiss", "Xenakis", "Yamada", "Zhang"]
FIRST = ["Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Katja", "Leo", "Mara", "Nils",
         "Olga", "Paul", "Rosa", "Simon", "Tessa", "Viktor"]
THINGS = ["brass telescope", "walnut cabinet", "bundle of letters", "silver compass", "leather trunk", "glass barometer",
          "oil painting of a mill", "pair of skis", "sewing machine", "wooden flute", "box of slides", "copper kettle",
          "stamp album", "ship's bell", "chess set of ivory", "carved mask", "rocking chair", "field radio", "garden urn",
          "pocket watch", "set of maps", "porcelain jug", "iron lantern", "violin case", "typewriter", "plaster bust"]
PLACES = ["the north cellar", "the upper gallery", "room 14", "the loft over the stables", "the long corridor",
          "the glass house", "room 32", "the old laundry", "the tower", "the vestibule", "room 7", "the coach house"]
STATES = ["in good order", "with a crack on one side", "without its key", "wrapped in oilcloth", "badly faded",
          "in two pieces", "with the label missing", "newly repaired"]
LETTERS = "ABCDEFGHKLMNPRSTUVWX"


def record(rng, number, name, thing):
    code = rng.choice(LETTERS) + rng.choice(LETTERS) + str(rng.randrange(100, 1000))
    return {"n": number, "who": rng.choice(FIRST) + " " + name, "what": thing, "code": code,
            "where": rng.choice(PLACES), "state": rng.choice(STATES), "year": rng.randrange(1871, 1969)}


def sentence(r):
    return (f"Entry {r['n']}. {r['who']} deposited a {r['what']} in {r['year']}, {r['state']}. It stands in {r['where']} "
            f"under the number {r['code']}.\n")


def behind(rng, records):
    text = "\nEnd of the register.\n\nQuestions and answers about the register.\n"
    asked = rng.sample(records, 8)
    for r in asked[:3]:
        text += f"Question: Under which number is the {r['what']} of {r['who']} kept?\nAnswer: Under the number {r['code']}.\n"
        text += f"Question: Where does it stand?\nAnswer: In {r['where']}.\n"
    text += "The following entries are repeated from the register.\n"
    for r in asked[3:]:
        text += sentence(r)
    return text


def main():
    rng = random.Random(20240611)
    pairs = [(n, t) for n in NAMES for t in THINGS]
    rng.shuffle(pairs)
    records = [record(rng, i + 1, n, t) for i, (n, t) in enumerate(pairs[:104])]
    with open("retrieval.txt", "w", encoding="utf-8") as f:
        f.write("Register of the objects that were left in the house, in the order in which they came.\n\n")
        f.writelines(sentence(r) for r in records)
    # Entries that lie before the cut: about 42 tokens each.
    for prefix in (2048, 4096):
        with open(f"retrieval-behind-{prefix}.txt", "w", encoding="utf-8") as f:
            f.write(behind(rng, records[: prefix // 50]))


if __name__ == "__main__":
    main()
