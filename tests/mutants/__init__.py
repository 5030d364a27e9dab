"""How many small mistakes in the arithmetic of the components do the tests notice?"""
