"""The departments of the shipped shop, in the order of their numbers."""

from __future__ import annotations

from envs.webshop.shipped.departments.beauty import BEAUTY
from envs.webshop.shipped.departments.clothing import CHILDREN, MEN, WOMEN
from envs.webshop.shipped.departments.electronics import AUDIO, ELECTRONICS
from envs.webshop.shipped.departments.food import DRINKS, GROCERY
from envs.webshop.shipped.departments.home import BEDDING, DECOR, FURNITURE
from envs.webshop.shipped.departments.kitchen import GARDEN, KITCHEN, OFFICE
from envs.webshop.shipped.departments.leisure import PETS, SPORTS, TOYS
from envs.webshop.shipped.departments.shoes import SHOES, TRAVEL
from envs.webshop.shipped.kinds import Department

__all__ = ["DEPARTMENTS"]

DEPARTMENTS: tuple[Department, ...] = (
    BEAUTY,
    WOMEN,
    MEN,
    CHILDREN,
    SHOES,
    TRAVEL,
    GROCERY,
    DRINKS,
    KITCHEN,
    BEDDING,
    FURNITURE,
    DECOR,
    GARDEN,
    OFFICE,
    ELECTRONICS,
    AUDIO,
    SPORTS,
    PETS,
    TOYS,
)
