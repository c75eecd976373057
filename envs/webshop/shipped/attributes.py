"""Every attribute of the shipped shop: its place in a sentence, and the sentences that state it in a listing."""

from __future__ import annotations

from envs.webshop.shipped.attribute_tables import TABLES
from envs.webshop.shipped.kinds import Attribute, read_attributes, split

__all__ = ["ATTRIBUTES", "stated"]

HEADS: dict[str, tuple[str, ...]] = {
    "care": ("Easy care", "Simple upkeep", "Less work", "Everyday care"),
    "build": ("Built to last", "Sturdy make", "Solid work", "Strong where it counts"),
    "feel": ("Comfort first", "Feels good", "Soft touch", "All day comfort"),
    "safe": ("Peace of mind", "Safe choice", "Nothing to worry about", "Thought through"),
    "food": ("Simple ingredients", "Good taste", "What is inside", "From the pantry"),
    "skin": ("Gentle formula", "Kind and mild", "What is inside", "Good care"),
    "tech": ("Clever design", "Ready to use", "Works well", "Smart details"),
    "fit": ("Great fit", "Cut with care", "Easy to wear", "Nice details"),
    "room": ("Where it fits", "A good match", "Made for you", "Right place"),
    "pack": ("In the box", "Practical extra", "Handy", "Small details"),
    "make": ("Material", "Made well", "Good stuff", "Quality you can feel"),
}
"""Heading of a bullet point, by what the statement is about."""

FRAMES: dict[str, tuple[str, ...]] = {
    "adj": ("%s by design.", "This one is %s.", "%s, and you will notice.", "%s without compromise."),
    "with": ("Comes with %s.", "Has %s, too.", "And, of course, %s."),
    "in": ("Comes in %s.", "Sold in %s.", "You get it in %s."),
    "of": ("Made of %s.", "We use %s and nothing cheaper.", "The material is %s."),
    "for": ("A good match for %s.", "Chosen by many for %s.", "Well suited for %s."),
}
"""Statements that fit every attribute of a role."""

UNCOUNTED = frozenset(
    split(
        """aloe vera; argan oil; coconut oil; green tea; hyaluronic acid; olive oil; natural beeswax; shea butter;
        tea tree; vitamin e; ionic technology; real fruit; organic catnip; memory foam; fleece lining; thermal
        lining; arch support; ankle support; reflective trim; adjustable height; adjustable length; adjustable fill;
        adjustable speed; auto focus; auto shutoff; cable management; data recovery; data transfer; deep bass;
        refillable ink; stereo sound; surround sound; temperature control; touch control; wireless charging; wireless
        bluetooth; hanging hardware; lumbar support; chin support; easy assembly; quick setup; soft close; dimmable
        light; orthopedic foam; silent movement"""
    )
)
"""Attributes that take no article."""

ARTICLES = {
    "living room": "the",
    "dining room": "the",
    "home office": "the",
    "guest room": "the",
    "kids room": "a",
    "kitchen island": "a",
    "touch screen": "a",
}
"""The article of attributes with a role of ``for`` that take one."""

ATTRIBUTES: dict[str, Attribute] = {
    phrase: attribute
    for table in TABLES
    for phrase, attribute in read_attributes(HEADS, UNCOUNTED, ARTICLES, table).items()
}


def stated(attribute: Attribute) -> tuple[str, ...]:
    """All sentences that may state ``attribute``: its own more likely than the general ones of its role."""
    frames = FRAMES[attribute.role]
    if attribute.role == "adj" and not attribute.predicative:
        frames = () if attribute.heads == HEADS["care"] else frames[:1]  # "Long sleeve by design.", never "It is ..."
    general = tuple(frame % attribute.named for frame in frames)
    own = attribute.statements * (6 // len(attribute.statements))
    return own + tuple(text[0].upper() + text[1:] for text in general)
