"""Invented names: brands, and product lines named after plain words."""

from __future__ import annotations

from envs.webshop.shipped.kinds import split

__all__ = ["BRANDS", "LINES"]

_STARTS = split(
    """Alder; Bram; Brenn; Cald; Carr; Copp; Corl; Dorn; Dun; Ebb; Elm; Embr; Fenn; Ferr; Garn; Glenn; Hald; Harl;
    Hest; Inver; Ivel; Jor; Kest; Kilb; Lark; Lorn; Lund; Marl; Merr; Nett; Noll; Oak; Orl; Pell; Pemb; Quill; Ravel;
    Rook; Sabl; Sedg; Sorr; Tarn; Thal; Tumb; Ulv; Vell; Wend; Wick; Yarr; Zell""",
)
_ENDS = split(
    """acre; amere; andry; anova; ardo; arrow; avane; ebrook; efield; elune; enholt; ensby; erly; ettin; evane;
    ifolk; igrove; ilden; imoor; inora; isand; istead; oakes; olane; omark; onfer; oridge; otham; ovale; uwood"""
)

BRANDS: tuple[str, ...] = tuple(start + end for end in _ENDS for start in _STARTS)

LINES = split(
    """Acorn; Amber Hill; April; Atlas; Basin; Beacon; Birch; Bluebird; Bridge; Brook; Canyon; Cedar; Clover; Coast;
    Comet; Cove; Creek; Daisy; Dawn; Delta; Dune; Ember; Falcon; Fern; Finch; Forest; Garden; Glade; Grove; Harbor;
    Harvest; Hazel; Heron; Hill; Island; Ivy; Juniper; Lake; Lantern; Maple; Meadow; Mesa; Mill; Nova; Orbit;
    Orchard; Otter; Pebble; Pine; Prairie; Quarry; Reef; River; Robin; Sail; Sierra; Sparrow; Spring; Summit;
    Sunrise; Tide; Trail; Valley; Willow"""
)
"""Names of product lines within a brand."""
