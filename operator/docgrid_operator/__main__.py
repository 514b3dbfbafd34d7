"""`python -m docgrid_operator`."""

from docgrid_operator.main import main

if __name__ == "__main__":
    main()
