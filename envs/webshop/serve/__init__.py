"""The shop in a browser: to play it by hand, and to watch recorded episodes. ``roll-envs serve-webshop`` starts it."""
