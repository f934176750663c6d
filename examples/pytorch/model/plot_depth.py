# SPDX-License-Identifier: Apache-2.0
"""Draws which rows the heads of trained models read, from the result file of train_text.py.

    python plot_depth.py h200_text.json heads.svg
"""
import json
import sys

COLUMNS = 3
CELL = 9  # pixels
LIGHT, DARK = (237, 243, 250), (8, 48, 107)  # of weights 0 and 1; square roots, so that small ones can be told apart


def colour(weight):
    return "#" + "".join(f"{round(a + (b - a) * weight ** 0.5):02x}" for a, b in zip(LIGHT, DARK))


def panel(title, weights, head, x, y):
    """One head's matrix: a line per site, which has a cell for every row that it reads."""
    cells = "".join(f'<rect x="{row}" y="{site}" width="1" height="1" fill="{colour(by_head[head])}"/>'
                    for site, rows in enumerate(weights) for row, by_head in enumerate(rows))
    return (f'<g transform="translate({x} {y})"><text y="-6">{title}</text>'
            f'<g transform="scale({CELL})">{cells}</g></g>\n')


def legend(x, y):
    """Colours of weights 0, 0.1, ..., 1."""
    cells = "".join(f'<rect x="{x + 14 * i}" y="{y}" width="14" height="10" fill="{colour(i / 10)}"/>' for i in range(11))
    return (f'{cells}<text x="{x - 8}" y="{y + 9}" text-anchor="end">mean depth weight 0</text>'
            f'<text x="{x + 162}" y="{y + 9}">1</text>\n')


def main(source, target):
    with open(source, encoding="utf-8") as file:
        depths = json.load(file)["depth_weights"]
    panels = [(f"H = {name[1:]}, head {head + 1}", weights, head)
              for name, weights in depths.items() for head in range(len(weights[0][0]))]
    side = CELL * len(panels[0][1]) + 36
    lines = -(-len(panels) // COLUMNS)
    width, height = 40 + COLUMNS * side, 70 + lines * side
    drawn = "".join(panel(*one, 40 + i % COLUMNS * side, 28 + i // COLUMNS * side) for i, one in enumerate(panels))
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
                   f'font-size="11">\n<rect width="100%" height="100%" fill="#ffffff"/>\n{drawn}'
                   f'<text x="40" y="{height - 46}">across: rows, first the embedding, then every sublayer\'s output</text>'
                   f'<text transform="translate(22 {height / 2}) rotate(-90)" text-anchor="middle">down: sites, first what '
                   f'feeds the first sublayer, last the final norm</text>\n{legend(160, height - 28)}</svg>\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
