"""`python -m terngrad`: the command line."""

from terngrad.cli import main

if __name__ == "__main__":
    main()
