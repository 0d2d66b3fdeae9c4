from enum import Enum, Flag, IntEnum, StrEnum, auto, unique

class State(Enum):
    IDLE = auto()
    RUNNING = auto()
    DONE = auto()

    @property
    def final(self):
        return self is State.DONE

    def next(self):
        members = list(State)
        return members[min(members.index(self) + 1, len(members) - 1)]

class Level(IntEnum):
    LOW = 1
    HIGH = 10

class Colour(StrEnum):
    RED = auto()
    DARK_BLUE = "dark-blue"

class Perm(Flag):
    R = 4
    W = 2
    X = 1
    RW = R | W

print(list(State), State.IDLE.next(), State["DONE"].final, State(2).name)
print(Level.HIGH > Level.LOW, Level.LOW + 1, sorted([Level.HIGH, Level.LOW]), f"{Colour.RED} {Colour.DARK_BLUE!r}")
print(Perm.R | Perm.X, Perm.RW & Perm.W, Perm.W in Perm.RW, Perm(0), ~Perm.X)
for make in (lambda: State(9), lambda: State["NOPE"]):
    try:
        make()
    except (ValueError, KeyError) as error:
        print(type(error).__name__, error)
try:
    @unique
    class Twice(Enum):
        A = 1
        B = 1
except ValueError as error:
    print(error)
print({State.IDLE: 1}[State.IDLE], State.IDLE == 1, len(State), State.IDLE.value, repr(Level.LOW), str(Colour.RED))
