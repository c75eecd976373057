"""Sentences of the shipped shop that fit any kind of product: openings, what shoppers ask for, what they say after."""

from __future__ import annotations

__all__ = ["OPENERS", "REQUESTS", "REQUESTS_WITH_CLAUSE", "REVIEWS"]

OPENERS: tuple[str, ...] = (
    "{A} by {brand} for {use}.",
    "{A} from {brand}, made for {use} and {other}.",
    "{brand} makes {this} for {use}.",
    "With {use} in mind, {brand} came up with {this}.",
    "{This} is meant for {use}, {other} and more.",
    "For {use}: {a} by {brand}.",
    "{brand} presents {a} for {use}.",
    "{A} that you will reach for again and again, be it for {use} or {other}.",
    "{This} by {brand} is a good choice for {use}.",
    "Whether for {use} or {other}, {this} does the job.",
)
"""First sentences of a description; ``{use}`` and ``{other}`` are two uses of the kind."""

REQUESTS: tuple[str, ...] = (
    "i am looking for %s",
    "i'm looking for %s",
    "i need %s",
    "i want %s",
    "i want to buy %s",
    "i would like %s",
    "i would like to buy %s",
    "i'd like to order %s",
    "find me %s",
    "please find me %s",
    "show me %s",
    "help me find %s",
    "can you find me %s",
    "could you help me find %s",
    "looking for %s",
    "i am in need of %s",
    "i am shopping for %s",
    "i am trying to find %s",
    "i am searching for %s",
    "i am on the hunt for %s",
    "get me %s",
    "please get me %s",
    "buy me %s",
    "please order %s for me",
    "i could use %s",
    "i'm after %s",
    "do you have %s",
    "i need to get %s",
    "hello, i'm looking for %s",
    "hi, i need %s please",
    "i was hoping to find %s",
    "we need %s at home",
    "i need %s as a gift for a friend",
    "for my sister i want %s",
    "my old one is gone, so i need %s",
)
"""Requests for ``%s``, the product with all its properties."""

REQUESTS_WITH_CLAUSE: tuple[str, ...] = (
    "i am looking for %s. %s",
    "i need %s, and %s",
    "i want %s. %s",
    "i would like to buy %s and %s",
    "looking for %s. %s please",
    "please find me %s. %s",
    "i'm looking for %s, %s",
    "show me %s. %s",
    "i want to buy %s, and %s",
    "get me %s, but %s",
    "help me find %s. also, %s",
    "i am shopping for %s, and %s",
)
"""Requests in which one option is named in a clause of its own."""

REVIEWS: dict[str, tuple[tuple[str, str], ...]] = {
    "good": (
        ("Very happy", "Just what I was looking for. I would buy the {noun} again."),
        ("Great value", "Good quality for the price, and it came sooner than expected."),
        ("As described", "Looks like the pictures. No complaints so far."),
        ("Second purchase", "We liked the first one so much that we ordered another for my mother."),
        ("Five stars", "Does what it says. My whole family likes it."),
        ("Nice surprise", "I was not sure about the brand, but the {noun} turned out really well."),
        ("Would recommend", "I told two friends about it and both have ordered since."),
        ("Exactly right", "Read the details first, chose the right option, and it is perfect."),
        ("Still good after months", "Used nearly every day since spring, and still like new."),
        ("Lovely", "Simple, pretty, and well packed."),
    ),
    "fair": (
        ("Okay", "Not bad, not special. It does the job."),
        ("Good, with one wish", "I like the {noun}, but I wish there were more colors to choose from."),
        ("Mixed feelings", "Quality is fine. Delivery took longer than promised."),
        ("Fine for the price", "You get what you pay for."),
        ("Check the details", "My fault: I did not read the page and took the wrong option."),
        ("Average", "I expected a little more, but I will keep it."),
    ),
    "poor": (
        ("Not for me", "I sent it back. The refund was quick."),
        ("Disappointed", "The box was torn and a part was missing."),
        ("Different from the picture", "The shade was not what I saw on my screen."),
        ("Would not buy again", "It was fine for two weeks, then I was no longer happy with it."),
    ),
}
"""Titles and texts of reviews by how the writer felt; ``{noun}`` is the product."""
