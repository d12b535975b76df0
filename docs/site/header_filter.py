"""For Doxygen: the comment at the top of a header becomes the file's own. To standard output."""

import sys

text = open(sys.argv[1]).read()
top = []
for line in text.splitlines():
    if not line.startswith("//"):
        break
    top.append(line[2:])
rest = "\n".join(text.splitlines()[len(top) :])
# A paragraph flows; what is drawn, behind more than one space, stays as it is.
print("/** @file")
for line in top:
    print(line.replace("*/", "* /").replace("@", "@@").replace("<", "&lt;").replace("#", "\\#"))
print("*/")
print(rest)
