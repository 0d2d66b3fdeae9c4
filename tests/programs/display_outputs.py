#: {"cell": true, "oracle": false}
import base64
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")

class Html:
    def _repr_html_(self):
        return "<b>bold</b>"

class Svg:
    def _repr_svg_(self):
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'

class Png:
    def _repr_png_(self):
        return PNG

class Json:
    def _repr_json_(self):
        return {"a": [1, 2]}

display(Html())
display(Svg())
display(Png())
display(PNG)
display(Json())
display({"b": [1, None]})
display("text")
display(5)
display("a,b\n1,2\n", mime="text/plain")
try:
    display("x", mime="application/x-unknown")
except Exception as error:
    print(type(error).__name__)
print("done")
