"""Products by the names people use, the targets that are for them, and what other engines document about them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cleanroom.arch_table import RELEASE, release
from cleanroom.envs import VENDORS, Envs
from cleanroom.errors import UnknownName
from cleanroom.strict_yaml import Item, listed, nearest, read_file
from cleanroom.target import Target

FILE = "products.yaml"


@dataclass(frozen=True)
class Product:
    """A card. `capability` is its compute capability ("9.0"), `listed` the document in which DeepInfer names it.

    What has no compute capability names its `target` instead. All three may be empty.
    """

    name: str
    vendor: str
    aliases: tuple[str, ...]
    capability: str
    target: str
    listed: str
    source: str

    def targets(self, envs: Envs) -> tuple[Target, ...]:
        """The targets whose own architectures run on it, supported ones first."""
        if not self.capability:
            return (envs.targets[self.target],) if self.target in envs.targets else ()
        found = [t for t in envs.targets.values() if envs.table.support(t.architectures, self.capability) != "does not run"]
        return tuple(sorted(found, key=lambda t: (t.status != "supported", t.name)))


@dataclass(frozen=True)
class Elsewhere:
    """What another engine documents, for the products it names or for every GPU from a capability on."""

    engine: str
    says: str
    source: str
    products: tuple[str, ...]
    from_capability: str

    def covers(self, product: Product) -> bool:
        """Whether the document speaks of this product."""
        if product.name in self.products:
            return True
        return bool(self.from_capability and product.capability) and release(product.capability) >= release(self.from_capability)


@dataclass(frozen=True)
class Products:
    """All of products.yaml."""

    by_name: Mapping[str, Product]
    elsewhere: tuple[Elsewhere, ...]

    def find(self, question: str) -> Product:
        """The product that a question such as "NVIDIA H100 80GB HBM3" or "rtx4090" is about.

        Raises UnknownName with the names that come close.
        """
        asked = _words(question)
        hits = [(len(words), p) for p in self.by_name.values() for words in _names(p) if _contains(asked, words)]
        best = {p.name: p for length, p in hits if length == max(n for n, _ in hits)}
        if len(best) == 1:
            return next(iter(best.values()))
        if best:
            raise UnknownName(
                f"{question!r} names several products: {', '.join(best)}.",
                means="They may be of different architectures.",
                next_step=f'nox -s matrix -- --gpu "{next(iter(best))}"',
            )
        spellings = {alias.casefold(): p.name for p in self.by_name.values() for alias in (p.name, *p.aliases)}
        close = dict.fromkeys(spellings[n] for n in difflib.get_close_matches(question.casefold(), spellings, n=3, cutoff=0.5))
        raise UnknownName(
            f"No product called {question!r} is known here" + (f"; close are {', '.join(close)}." if close else "."),
            means=f"envs/{FILE} knows {', '.join(self.by_name) or 'none'}.",
            next_step=f"use one of these names, or add the product to envs/{FILE} with its compute capability and source",
        )

    def documented(self, product: Product) -> tuple[Elsewhere, ...]:
        """What others document about a product; about the product by name first."""
        found = [e for e in self.elsewhere if e.covers(product)]
        return tuple(sorted(found, key=lambda e: product.name not in e.products))


def read_products(envs_dir: Path, envs: Envs) -> Products:
    """Read `envs_dir`/products.yaml; without that file, none. Raises EnvsError with every mistake of the file."""
    if not (envs_dir / FILE).exists():
        return Products({}, ())
    return read_file(envs_dir / FILE, f"{envs_dir.name}/{FILE}", lambda item: _products(item, envs))


def _products(item: Item, envs: Envs) -> Products:
    fields = item.fields(["products"], ["elsewhere"])
    by_name = {name: _product(name, each, envs) for name, each in fields.entries("products")}
    spelt = [words for product in by_name.values() for words in _names(product)]
    for name, each in fields.entries("products"):
        for words in _names(by_name[name]):
            if not words:
                each.wrong("has a name or alias without a letter or digit, which every question would hold")
            elif spelt.count(words) > 1:
                each.wrong(f"{' '.join(words)!r} means two products, or one of them twice")
    return Products(by_name, tuple(_elsewhere(each, by_name) for each in fields.items("elsewhere")))


def _product(name: str, item: Item, envs: Envs) -> Product:
    fields = item.fields(["vendor", "source"], ["aliases", "capability", "target", "listed"])
    vendor = fields.choice("vendor", VENDORS)
    capability = fields.text("capability", f"one of {listed(envs.architectures)}", lambda t: t in envs.architectures)
    if (vendor == "nvidia") != ("capability" in fields) or ("capability" in fields and "target" in fields):
        item.wrong("an NVIDIA product has a capability and no target, any other no capability")
    return Product(
        name=name,
        vendor=vendor,
        aliases=fields.texts("aliases", least=1),
        capability=capability,
        target=fields.text("target"),
        listed=fields.text("listed"),
        source=fields.text("source"),
    )


def _elsewhere(item: Item, by_name: Mapping[str, Product]) -> Elsewhere:
    fields = item.fields(["engine", "says", "source"], ["products", "from_capability"])
    if ("products" in fields) == ("from_capability" in fields):
        item.wrong("says for what it is in one of two ways: products or from_capability")
    names = fields.texts("products", least=1)
    for name in names:
        if name and name not in by_name:
            fields["products"].wrong(f"there is no product {name!r}{nearest(name, by_name)}")
    return Elsewhere(
        engine=fields.text("engine"),
        says=fields.text("says"),
        source=fields.text("source"),
        products=names,
        from_capability=fields.text(
            "from_capability", 'a capability in quotes, such as "7.0"', lambda t: bool(RELEASE.fullmatch(t))
        ),
    )


def _words(text: str) -> tuple[str, ...]:
    """Letters and digits apart, so that "rtx4090", "RTX-4090" and "RTX 4090" are the same words."""
    return tuple(re.findall(r"[a-z]+|[0-9]+", text.casefold()))


def _names(product: Product) -> Iterator[tuple[str, ...]]:
    yield from map(_words, (product.name, *product.aliases))


def _contains(words: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))
