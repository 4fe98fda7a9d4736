"""`python -m twinkle`: the program `twinkle`."""

from twinkle.program import main

if __name__ == "__main__":
    main()
