"""Reads a page of the shop as a browser does: its buttons, links, texts."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["PageReader"]

_VOID = {"meta", "link", "input", "img", "br", "hr", "path", "rect"}


class PageReader(HTMLParser):
    """``buttons``: (value of ``action``, disabled) of each button that plays one; ``addresses``: every href and src."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.buttons: list[tuple[str, bool]] = []
        self.pressed: list[str] = []
        self.next: list[str] = []
        self.addresses: list[str] = []
        self.has_search_box = False
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    @property
    def text(self) -> str:
        """All text, in one line."""
        return " ".join(" ".join(self._text).split())

    def enabled(self) -> set[str]:
        """The actions that can be clicked."""
        return {action for action, disabled in self.buttons if not disabled}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.attributes.update(given)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "button" and given.get("name") == "action":
            self.buttons.append((given["value"], "disabled" in given))
            if given.get("aria-pressed") == "true":
                self.pressed.append(given["value"])
        if "next" in given.get("class", "").split() and "data-action" in given:
            self.next.append(given["data-action"])
        if tag == "input" and given.get("name") == "query":
            self.has_search_box = "disabled" not in given
        self.addresses += [given[name] for name in ("href", "src", "action") if given.get(name)]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._text.append(data)
