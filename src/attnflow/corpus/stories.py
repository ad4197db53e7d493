"""Small stories from a grammar of our own: a corpus that needs no download.

A story has a hero, a friend, a wish, a place, a trouble and an end. Words of each kind are drawn by
Zipf's law, pronouns agree with whom they stand for, and things come back later in the story, so
that the text has frequencies, word order and dependence over distance to be learned.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from attnflow._errors import whole

WORDS = """
she: Lily, Mia, Anna, Sue, Emma, Rosa, Nora, Ella, Maya, Zoe, Ida, Jane
he: Tom, Ben, Max, Sam, Tim, Leo, Jack, Finn, Omar, Paul, Hugo, Noah
animal: cat, dog, bird, rabbit, frog, mouse, fox, bear, duck, horse, turtle, fish, owl,
  squirrel, goat, bee, hen, lamb, snail, whale
thing: ball, box, boat, kite, book, cake, hat, doll, key, stone, flower, shell, lamp, bell,
  drum, coat, basket, ring, cup, map, apple, ladder, blanket, whistle, wheel, spoon, feather,
  button, rope, candle
place: park, house, garden, forest, river, lake, school, hill, farm, beach, shop, bridge, field,
  cave, barn, tower, market, harbour
look: big, red, little, blue, old, shiny, small, green, soft, round, yellow, pretty, warm, new,
  heavy, tiny, bright, strange, golden, dusty, wooden
mood: happy, sad, scared, proud, tired, surprised, angry, brave, curious, lonely, kind, quiet
going: went, ran, walked, came, hurried, flew, crept
doing: found, saw, took, liked, wanted, held, lost, shared, hid, kept, carried, painted, mended
play: play, run, jump, sing, dance, swim, dig, climb, draw, read, sleep, hop
speaking: said, cried, whispered, shouted, laughed, answered
weather: sunny, rainy, windy, cold, warm, snowy, foggy
time: Then, One day, After that, Later, In the morning, Suddenly, The next day, That night,
  At last
family: mom, dad, grandma, brother, sister, uncle
"""
"""The words of each kind, the most frequent first."""

KINDS: dict[str, list[str]] = {
    kind: re.split(r",\s+", words.strip())
    for kind, words in re.findall(r"^(\w+): ((?:.+\n)(?:  .+\n)*)", WORDS, re.MULTILINE)
}

OPENINGS = (
    "Once upon a time, there was a {look} {kind} named {Hero}.",
    "There was once a {kind} named {Hero} who lived near the {place}.",
    "One {weather} day, {Hero} the {kind} {going} to the {place}.",
    "{Hero} was a {look} {kind} who loved to {play}.",
)
WISHES = (
    "{He} had a {look} {thing} and {he} loved it very much.",
    "Every day {he} would {play} by the {place} with {his} {look} {thing}.",
    "{He} wanted to find a {look} {thing}.",
    "{His} {family} gave {him} a {look} {thing}.",
    "{He} liked to {play} and {play2} all day.",
)
MEETINGS = (
    "{time}, {Hero} met a {look2} {animal} named {Friend}.",
    "{Friend}, the {look2} {animal}, lived by the {place} too.",
    "{His} friend {Friend} the {animal} {going} to the {place}.",
)
MIDDLES = (
    "{time}, {he} {going} to the {place} and {doing} {a_thing}.",
    '"Do you want to {play} with me?" asked {Friend}.',
    '"Yes, let us {play} by the {place}!" {speaking} {Hero}.',
    '"Look at my {thing}," {speaking} {Hero}, "it is so {look}!"',
    "{Friend} {doing} the {thing} and {going} back to the {place}.",
    "{Hero} and {Friend} {going} to the {place} to {play}.",
    "But the {thing} was not by the {place}, and {Hero} was very {mood}.",
    "{He} looked for the {thing} under the {thing2} but {he} could not find it.",
    "The {look2} {animal} {doing} {a_thing} too.",
    "It was a {weather} day, so they {doing} the {thing} and {going} home.",
    "{Hero} asked {his} {family} for help, and {his} {family} {doing} {a_thing}.",
    '"Please help me," {speaking} {he}, "I lost my {thing} by the {place}."',
    "{time}, a {look2} {animal} {going} out of the {place}.",
    "{Friend} was {mood2}, but {Hero} was {mood}.",
)
ENDINGS = (
    "{Hero} was so {mood} that {he} began to {play}.",
    "{time}, {he} found the {thing} by the {place} and gave it to {Friend}.",
    'They were {mood} and {speaking}, "We are friends now!"',
    "{Hero} and {Friend} went home and were very {mood}.",
    "And from that day on, {Hero} and {Friend} would {play} by the {place} every day.",
    "{Hero} learned that it is good to be {mood}. The end.",
)


def stories(seed: int = 0, sentences: int = 2000) -> str:
    """Stories of five to twelve sentences, one to a line; about `sentences` in all, never fewer.

    >>> print(stories(seed=1, sentences=5)[:44])
    One cold day, Tom the hen ran to the forest.
    """
    rng = np.random.default_rng(whole("seed", seed, 0))
    whole("sentences", sentences)
    told, lines = 0, []
    while told < sentences:
        story = _story(rng)
        told += len(story)
        lines.append(" ".join(story))
    return "\n".join(lines) + "\n"


def _story(rng: np.random.Generator) -> list[str]:
    cast = _cast(rng)
    middle = int(rng.integers(1, 8))
    plan = [OPENINGS, WISHES, MEETINGS, *[MIDDLES] * middle, ENDINGS]
    if rng.random() < 0.5:
        plan.append(ENDINGS)
    told: list[str] = []
    for templates in plan:
        chosen = zipf(rng, [new for new in templates if new not in told])
        told.append(chosen)
    return [_filled(template, cast, rng) for template in told]


def _cast(rng: np.random.Generator) -> dict[str, str]:
    """Who and what a story is about; these stay the same to its end."""
    she = rng.random() < 0.5
    person = rng.random() < 0.7
    names = KINDS["she"] if she else KINDS["he"]
    hero = zipf(rng, names)
    he, his, him = ("she", "her", "her") if she else ("he", "his", "him")
    kind = ("girl" if she else "boy") if person else zipf(rng, KINDS["animal"])
    friend = zipf(rng, [name for name in (*KINDS["he"], *KINDS["she"]) if name != hero])
    thing = zipf(rng, KINDS["thing"])
    return {
        "Hero": hero,
        "Friend": friend,
        "kind": kind,
        "animal": zipf(rng, [animal for animal in KINDS["animal"] if animal != kind]),
        "thing": thing,
        "thing2": zipf(rng, [other for other in KINDS["thing"] if other != thing]),
        "place": zipf(rng, KINDS["place"]),
        "look": zipf(rng, KINDS["look"]),
        "family": zipf(rng, KINDS["family"]),
        "he": he,
        "his": his,
        "him": him,
        "He": he.capitalize(),
        "His": his.capitalize(),
    }


FRESH = "play, play2, going, doing, speaking, mood, mood2, look2, weather, time"
"""Slots that are drawn anew in every sentence."""


def _filled(template: str, cast: dict[str, str], rng: np.random.Generator) -> str:
    """A sentence with its slots filled; now and then the story moves to another place."""
    if "{place}" in template and rng.random() < 0.25:
        cast["place"] = zipf(rng, KINDS["place"])
    words = dict(cast)
    if "{a_thing}" in template:
        same = rng.random() < 0.5
        words["a_thing"] = f"the {cast['thing']}" if same else f"a {zipf(rng, KINDS['thing'])}"
    drawn = re.findall(r"{(\w+)}", template)
    fresh = [slot for slot in drawn if slot in FRESH.split(", ")]
    words |= {slot: zipf(rng, KINDS[slot.rstrip("2")]) for slot in fresh}
    sentence = template.format(**words)
    return re.sub(r"\ba (?=[aeiou])", "an ", sentence)


def zipf(rng: np.random.Generator, words: Sequence[str]) -> str:
    """One of the words; the k-th has the probability `1/k`, up to a factor."""
    total = list(accumulate(1 / k for k in range(1, len(words) + 1)))
    return words[bisect(total[:-1], rng.random() * total[-1])]
