#: {"cell": true, "oracle": false}
class Temperature:
    def __init__(self, degrees):
        self.degrees = degrees
    def __repr__(self):
        return f"Temperature({self.degrees}°)"
[Temperature(20), {1, 2}, b"x", (3, 4)]
