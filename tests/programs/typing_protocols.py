from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, Callable, Generic, Literal, NamedTuple, Optional, Protocol, TypedDict, TypeVar, Union, get_type_hints, overload, runtime_checkable

T = TypeVar("T")

class Stack(Generic[T]):
    def __init__(self) -> None:
        self._items: list[T] = []
    def push(self, item: T) -> Stack[T]:
        self._items.append(item)
        return self
    def pop(self) -> T:
        return self._items.pop()

@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...

class Door:
    def close(self) -> None:
        print("shut")

class Movie(TypedDict, total=False):
    title: str
    year: int

class Employee(NamedTuple):
    name: str
    id: int = 3

class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...

@overload
def double(x: int) -> int: ...
@overload
def double(x: str) -> str: ...
def double(x):
    return x * 2

def handler(a: int, b: Optional[str] = None, *rest: float, c: Literal["x", "y"] = "x") -> dict[str, list[int]]:
    return {}

print(Stack[int]().push(1).push(2).pop(), isinstance(Door(), Closes), isinstance(3, Closes))
print(Movie(title="M", year=1931), Employee("Guido"), Employee("a", 1)._asdict(), double(4), double("ab"))
hints = get_type_hints(handler)
print(hints.pop("b") == Optional[str], hints)
print(typing.get_origin(dict[str, int]), typing.get_args(Union[int, str]), Optional[int] == Union[int, None], Callable[[int], str])
try:
    Shape()
except TypeError as error:
    print("TypeError", "abstract" in str(error))
match {"kind": "point", "at": [1, 2]}:
    case {"kind": "point", "at": [x, y]} if x < y:
        print("point", x, y)
    case _:
        print("no")
print(typing.cast(Any, 5), list[int] == typing.List[int], int | str)
