"""Statuses by name: `codes.ok`, `codes.not_found`."""

from http import HTTPStatus

from .structures import LookupDict

codes = LookupDict()
for _status in HTTPStatus:
    codes[_status.name.lower()] = codes[_status.name] = _status.value
for _name, _value in {"okay": 200, "all_ok": 200, "moved": 301, "teapot": 418}.items():
    codes[_name] = _value
