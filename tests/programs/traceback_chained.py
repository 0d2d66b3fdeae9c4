#: {"stderr": true, "python": "3.13"}
class ConfigError(Exception):
    pass

def load():
    try:
        int("12x")
    except ValueError as error:
        raise ConfigError("port is not a number") from error

load()
