"""Returns objects whose unpickling, copying or printing would run code."""

import os


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch @CANARY@/pickled",))

    def __repr__(self):
        os.system("touch @CANARY@/printed")
        return "1.0"

    def __deepcopy__(self, memo):
        os.system("touch @CANARY@/copied")
        return self


def decode_fp16(code):
    return Bomb()


def ulp_fp16(x):
    return [Bomb()]


def range_table(e, m):
    return {"max": Bomb()}
