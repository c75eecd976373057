"""Electronics, sound and cameras."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["AUDIO", "ELECTRONICS"]


ELECTRONICS = Department(
    category="electronics",
    openers=(
        "Small, tidy and ready: {this} does its job without fuss.",
        "{brand} tests every piece for a day.",
    ),
    closers=(
        "Manual in the box.",
        "Check that it fits your device before you order.",
        "Recycle electronics, do not bin them.",
        "Tested before it leaves the factory.",
    ),
    kinds=(
        kind(
            "charging cables",
            "charging cable",
            "Power",
            (5, 26),
            o.TECH,
            o.CABLES,
            o.PLUGS,
            styles="coiled; right angle; flat; desk",
            attributes="""fast charging; braided nylon; tangle free; heavy duty; data transfer; aluminum plug; cable
            tie; bend resistant""",
            uses="the bedside; the car; the office; a power bank",
            facts="""Sits firmly in the socket.; A spare for every bag.; Marked at both ends.; Light enough to roll
            up.; Works through most cases.""",
        ),
        kind(
            "phone cases",
            "phone case",
            "Phones",
            (7, 36),
            o.TECH,
            o.PATTERNS,
            styles="slim; clear; wallet; rugged",
            attributes="""shock absorbing; scratch resistant; wireless charging; raised edges; faux leather / genuine
            leather / soft silicone; card holder; kick stand; non slip; fade resistant""",
            uses="daily carry; the work site; the beach; a night out",
            facts="""All buttons stay easy to press.; Snaps on in a second.; Cut exactly for the camera.; Does not
            add much weight.; Wipe with a damp cloth.""",
        ),
        kind(
            "power banks",
            "power bank",
            "Power",
            (16, 80),
            o.TECH,
            o.POWER,
            styles="slim; pocket; rugged; travel",
            attributes="""fast charging; wireless charging; solar powered; led display; water resistant; carrying
            case; light weight; built in cable; two ports""",
            uses="long flights; festivals; camp sites; the daily commute",
            facts="Shows how much is left.; Rounded to fit a pocket.; Comes half charged.; Allowed in hand luggage.",
        ),
        kind(
            "computer mice",
            "computer mouse",
            "Computer Extras",
            (9, 60),
            o.TECH,
            styles="compact; vertical; travel; gaming",
            attributes="""silent click; rechargeable battery / battery powered; ergonomic grip; wireless connection /
            braided nylon; adjustable speed; side buttons; light weight; left handed""",
            uses="the office; laptops; small hands; long evenings",
            facts="""Glides on most desks.; Wakes as soon as it moves.; Works without a driver.; Smooth wheel with
            clear steps.""",
        ),
        kind(
            "keyboards",
            "computer keyboard",
            "Computer Extras",
            (18, 120),
            o.TECH,
            o.any_of("Style", "full; compact; tenkeyless", o.TYPE, 2, 2),
            styles="mechanical; slim; desk; folding",
            attributes="""backlit keys; wireless connection; rechargeable battery / battery powered; spill resistant;
            silent keys; wrist rest; aluminum body; media keys; multi device""",
            uses="writing; gaming; the office; a tablet",
            facts="""Keys with a soft landing.; Feet set two angles.; Letters do not rub off.; Works with common
            systems.; Caps pull off for cleaning.""",
        ),
        kind(
            "webcams",
            "webcam",
            "Computer Extras",
            (18, 110),
            o.any_of("Color", "black; white; gray", o.COLOR, 2, 2),
            styles="desktop; clip on; streaming; mini",
            attributes="""auto focus; wide angle; privacy cover; dual microphone; ring light; tripod mount; low
            light; high speed; easy install""",
            uses="video calls; online classes; streaming; talks with family",
            facts="""Clips onto screens of any depth.; Cord of 5 ft.; Turns and tilts.; Plug it in and start.; Sharp
            picture up to 1080 lines.""",
        ),
        kind(
            "memory cards",
            "memory card",
            "Storage",
            (8, 70),
            o.GIGABYTES,
            o.PACKS,
            styles="micro; camera; dashcam; pro",
            attributes="high speed; water proof; shock proof; adapter included; data recovery; video recording",
            uses="phones; action cameras; drones; game consoles",
            facts="""Small card, large room.; Comes in a clear case.; Format it in the device.; Label side is for
            notes.; Slide in with the label up.""",
        ),
        kind(
            "laptop sleeves",
            "laptop sleeve",
            "Computer Extras",
            (11, 48),
            o.LEATHER,
            o.SCREENS,
            styles="felt; slim; envelope; classic",
            attributes="""water resistant; shock absorbing; zipper closure / magnetic closure; faux leather / genuine
            leather / recycled polyester; side pocket; light weight; fleece lining; carrying handle""",
            uses="the backpack; meetings; lectures; a café table",
            facts="Slides into any bag.; Corners are padded most.; Thin but firm.; Fits snugly.; Brush off dust.",
        ),
    ),
)

AUDIO = Department(
    category="audio and camera",
    openers=(
        "{This} is simple to set up and a joy to use.",
        "{brand} listens before it builds.",
    ),
    closers=(
        "Two years of help by mail.",
        "Quick start guide in the box.",
        "Keep the box for safe travel.",
    ),
    kinds=(
        kind(
            "headphones",
            "over ear headphones",
            "Headphones",
            (24, 180),
            o.TECH,
            form="pair",
            styles="studio; folding; travel; classic",
            attributes="""noise cancelling; wireless bluetooth; rechargeable battery; foldable design; carrying case;
            memory foam; stereo sound; dual microphone; light weight; fast charging""",
            uses="open offices; train rides; mixing; late games",
            facts="""Clear voices and firm lows.; Ear cups turn flat.; Headband adjusts in small steps.; Play and
            pause on the right cup.; Pads can be replaced.""",
        ),
        kind(
            "earbuds",
            "earbuds",
            "Headphones",
            (14, 120),
            o.TECH,
            form="pair",
            styles="mini; sport; everyday; clip",
            attributes="""wireless bluetooth; noise cancelling; water resistant; charging case; touch control; stereo
            sound; fast charging; ear hooks; low latency""",
            uses="running; phone calls; the bus; podcasts",
            facts="""Three sizes of tips.; Pairs as soon as you open the lid.; One bud works alone.; Stays put when
            you jump.; Small lights show the charge.""",
        ),
        kind(
            "bluetooth speakers",
            "bluetooth speaker",
            "Speakers",
            (18, 150),
            o.TECH,
            styles="mini; party; shower; retro",
            attributes="""water proof / water resistant; rechargeable battery; stereo sound; deep bass; carrying
            strap; dust proof; hands free; light show; light weight""",
            uses="picnics; the shower; the garage; a garden party",
            facts="""Loud enough for a terrace.; Big buttons on top.; Pairs two for a wider sound.; Rolls about
            without harm.; Range of a large room.""",
        ),
        kind(
            "sound bars",
            "sound bar",
            "Speakers",
            (45, 260),
            o.any_of("Color", "black; white; silver", o.COLOR, 2, 3),
            styles="slim; compact; theater; desktop",
            attributes="""wireless bluetooth; remote control; wall mounted; deep bass; surround sound; easy install;
            optical input; night mode; led display""",
            uses="movie nights; small rooms; sports; the bedroom screen",
            facts="""Sits below most screens.; Voices come out clearly.; Cables are in the box.; Three sound modes.;
            Turns on with the screen.""",
        ),
        kind(
            "tripods",
            "camera tripod",
            "Camera",
            (16, 130),
            o.any_of("Color", "black; blue; red; orange; gray", o.COLOR, 2, 3),
            styles="travel; tabletop; tall; video",
            attributes="""light weight; carbon fiber / pure aluminum; carrying case; phone holder; remote control;
            quick release; foldable design; non slip; ball head; heavy duty""",
            uses="group photos; night skies; video calls; long hikes",
            facts="""Legs lock with a flip.; A level shows when it is straight.; Hook below for a weight.; Sets up in
            a minute.; Turns upright or across.""",
        ),
    ),
)
