"""The tables of attributes, by where they are mostly used."""

from __future__ import annotations

from envs.webshop.shipped.attribute_tables.care_and_food import CARE_AND_FOOD
from envs.webshop.shipped.attribute_tables.cloth_and_home import CLOTH_AND_HOME
from envs.webshop.shipped.attribute_tables.things import THINGS

__all__ = ["TABLES"]

TABLES = (CARE_AND_FOOD, CLOTH_AND_HOME, THINGS)
