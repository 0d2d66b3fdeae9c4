import textwrap

TEXT = """The quick brown fox jumps over the lazy dog. A wizard's job is to vex chumps quickly in fog —
while five boxing wizards jump."""
print(textwrap.fill(TEXT, width=34, initial_indent="* ", subsequent_indent="  "))
print(textwrap.shorten(TEXT, width=40, placeholder=" …"))
print(repr(textwrap.dedent("""
    one
      two
    three
""")))
print(textwrap.indent("a\n\nb\n", "> ", lambda line: True))
print(textwrap.wrap("supercalifragilistic word", 10, break_long_words=False))

rows = [("name", "qty", "price"), ("tea", 2, 3.5), ("coffee beans", 10, 12.25)]
widths = [max(len(str(row[i])) for row in rows) for i in range(3)]
for row in rows:
    print("|".join(f" {str(cell):<{w}} " if i == 0 else f" {str(cell):>{w}} " for i, (cell, w) in enumerate(zip(row, widths))))
    if row is rows[0]:
        print("+".join("-" * (w + 2) for w in widths))
print("{:^20}|{:>+8.2f}|{:<8x}|{:08b}|{:_}".format("mid", 3.14159, 255, 5, 1234567))
print("%-5s|%05d|%.3e|%r|%%" % ("ab", 42, 12345.678, "q"))
print(f"{'nested':{'*'}^{12}} {1/3:.{3}%} {10**20:,} {255:#x} {-7 // 2} {-7 % 3} {2.5!r:>6}")
print("tab\tsep".expandtabs(8), "a-b-c".rsplit("-", 1), "x".join("123"), "ß".upper(), "Straße".casefold(), "abc".translate(str.maketrans("ab", "xy")))
