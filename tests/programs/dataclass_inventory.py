from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, asdict, replace
from typing import ClassVar


@dataclass(order=True, frozen=True)
class Item:
    price: float
    name: str = field(compare=False)
    tags: tuple[str, ...] = ()
    currency: ClassVar[str] = "EUR"

    def __post_init__(self):
        if self.price < 0:
            raise ValueError(f"negative price: {self.price}")


@dataclass(slots=True, kw_only=True)
class Basket:
    items: list[Item] = field(default_factory=list)
    owner: str

    @property
    def total(self) -> float:
        return sum(item.price for item in self.items)


basket = Basket(owner="ann", items=[Item(2.5, "tea"), Item(1.0, "milk", ("cold",))])
print(basket)
print(asdict(basket))
print(sorted(basket.items), max(basket.items).name, basket.total)
print(replace(basket.items[0], price=9.0), hash(Item(1.0, "x")) == hash(Item(1.0, "y")))
for action in (lambda: setattr(basket.items[0], "price", 1), lambda: Item(-1, "bad"), lambda: Basket(items=[])):
    try:
        action()
    except (dataclasses.FrozenInstanceError, ValueError, TypeError) as error:
        print(type(error).__name__, error)
print([f.name for f in dataclasses.fields(Item)], Item.__match_args__)
