#: {"oracle": false}
for name in ("numpy", "pandas", "ctypes", "not_a_module"):
    try:
        __import__(name)
        print(name, "imported")
    except ModuleNotFoundError as error:
        print(name, "ModuleNotFoundError")
    except ImportError as error:
        print(name, "ImportError", "\n" not in str(error))
