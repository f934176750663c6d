// SPDX-License-Identifier: Apache-2.0
//! Draws depth maps as an SVG picture.
#include "picture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace quickstart {
namespace {

constexpr double margin = 28;
constexpr double title_height = 74;
constexpr double scheme_title = 24;
constexpr double panel_gap = 22;
constexpr double panel_title = 20;
constexpr double call_labels = 62;  // beside a panel
constexpr double row_labels = 48;   // below it
constexpr double guide_width = 540;
constexpr int panels_per_line = 4;

std::string number(double value, const char* format = "%.1f")
{
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

//! Row 0 is the embedding, then attention and MLP take turns.
std::string row_label(int row)
{
  if (row == 0) { return "embed"; }
  return (row % 2 == 1 ? "attn " : "mlp ") + std::to_string((row + 1) / 2);
}

//! Call c makes the input of what writes row c + 1; the last one that of the output layer.
std::string call_label(int call, int num_calls)
{
  return call == num_calls - 1 ? "output" : row_label(call + 1);
}

//! From almost white to dark violet, even to the eye; the root spreads the many small weights.
std::string colour(double weight)
{
  constexpr std::array<std::array<double, 3>, 6> stops{{{247, 247, 250},
                                                        {198, 219, 239},
                                                        {120, 181, 214},
                                                        {55, 128, 184},
                                                        {38, 72, 143},
                                                        {32, 18, 77}}};
  const double place = std::sqrt(std::clamp(weight, 0.0, 1.0)) * (stops.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), stops.size() - 2);
  const double share = place - static_cast<double>(below);
  std::array<int, 3> mixed{};
  for (std::size_t i = 0; i < 3; ++i) {
    mixed[i] =
        static_cast<int>(std::lround((1 - share) * stops[below][i] + share * stops[below + 1][i]));
  }
  return "rgb(" + std::to_string(mixed[0]) + "," + std::to_string(mixed[1]) + "," +
         std::to_string(mixed[2]) + ")";
}

//! The drawing so far, in elements of SVG.
class canvas
{
public:
  void rectangle(double x, double y, double width, double height, const std::string& fill,
                 const std::string& tip = {})
  {
    body_ += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
             "\" height=\"" + number(height) + "\" fill=\"" + fill + "\"";
    body_ += tip.empty() ? "/>\n" : "><title>" + tip + "</title></rect>\n";
  }
  void frame(double x, double y, double size)
  {
    body_ += "<path d=\"M" + number(x) + " " + number(y) + "v" + number(size) + "h" + number(size) +
             "\" fill=\"none\" stroke=\"#9aa0a8\"/>\n";
  }
  //! `style` is a class of the sheet below; `turn` is in degrees about the anchor.
  void text(double x, double y, const std::string& style, const std::string& words, double turn = 0)
  {
    body_ +=
        "<text class=\"" + style + "\" transform=\"translate(" + number(x) + " " + number(y) + ")";
    body_ += turn == 0 ? "\">" : " rotate(" + number(turn) + ")\">";
    body_ += words + "</text>\n";
  }
  [[nodiscard]] std::string document(double width, double height) const
  {
    const std::string size = "width=\"" + number(width) + "\" height=\"" + number(height) + "\"";
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " + number(width) +
           " " + number(height) +
           "\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#22262b\">\n"
           "<style>.title{font-size:20px;font-weight:bold}.note{font-size:12px;fill:#5a6068}"
           ".scheme{font-size:14px;font-weight:bold}.axis{font-size:12px;fill:#5a6068;text-anchor:"
           "middle}"
           ".key{font-size:12px;font-weight:bold}.tick{font-size:9px;text-anchor:end}.mark{font-"
           "size:10px;text-anchor:middle}</style>\n"
           "<rect " +
           size + " fill=\"#ffffff\"/>\n" + body_ + "</svg>\n";
  }

private:
  std::string body_;
};

//! Where panels go: a scheme starts a new line of panels, and a line holds so many.
struct layout
{
  double cell;
  double panel;  // its side

  explicit layout(int num_calls) : cell{std::max(208.0 / num_calls, 5.0)}, panel{cell * num_calls}
  {
  }
  [[nodiscard]] double line_height() const { return panel_title + panel + row_labels + panel_gap; }
  [[nodiscard]] double left(int column) const
  {
    return margin + call_labels + column * (panel + panel_gap);
  }
};

void draw_panel(canvas& out, const layout& place, const depth_map& map, int head, int column,
                double top)
{
  const double left = place.left(column);
  const int num_calls = map.num_calls();
  // With many calls only every other label, or fewer, has room.
  const int step = static_cast<int>(std::ceil(11 / place.cell));
  for (int call = 0; call < num_calls; ++call) {
    const double middle = (call + 0.5) * place.cell;
    for (int row = 0; row <= call; ++row) {
      const double weight = map.mean(call, head, row);
      out.rectangle(left + row * place.cell, top + call * place.cell, place.cell - 0.5,
                    place.cell - 0.5, colour(weight),
                    "input of " + call_label(call, num_calls) + " reads " + row_label(row) + ": " +
                        number(weight, "%.3f"));
    }
    if (call % step != 0) { continue; }
    if (column == 0) { out.text(left - 6, top + middle + 3, "tick", call_label(call, num_calls)); }
    out.text(left + middle + 3, top + place.panel + 8, "tick", row_label(call), -60);
  }
  out.frame(left, top, place.panel);
}

//! Panels of one scheme from `top` down; returns where the next scheme may start.
double draw_scheme(canvas& out, const layout& place, const titled_map& scheme, double top)
{
  const depth_map& map = *scheme.map;
  out.text(place.left(0), top + scheme_title - 8, "scheme", scheme.title);
  top += scheme_title;
  for (int head = 0; head < map.num_heads(); ++head) {
    const int column = head % panels_per_line;
    if (head > 0 && column == 0) { top += place.line_height(); }
    const std::string title =
        map.num_heads() > 1 ? "head " + std::to_string(head + 1) : "all of the width";
    out.text(place.left(column), top + panel_title - 7, "note", title);
    draw_panel(out, place, map, head, column, top + panel_title);
    if (column == 0) {
      out.text(margin + 4, top + panel_title + place.panel / 2, "axis", "the input of", -90);
      out.text(margin + 30, top + panel_title + place.panel + 22, "axis", "reads");
    }
  }
  return top + place.line_height();
}

//! How to read a panel, and what the colours mean.
void draw_guide(canvas& out, double left, double top)
{
  const std::array<const char*, 5> lines{
      "A line of a panel is one routing call: what the sublayer named beside it reads.",
      "A column is what there is to read: the embedding, or an earlier sublayer's output.",
      "Training starts from even lines, where everything earlier counts the same.",
      "Dark cells are what the model has learned to read more of; pale ones it skips.",
      "A single head reads with all of the width at once, several heads each with a slice of it."};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out.text(left, top + 20 * static_cast<double>(i), "note", lines[i]);
  }
  const double bar = top + 20.0 * lines.size() + 16;
  constexpr double width = 320;
  constexpr int num_steps = 80;
  out.text(left, bar - 8, "key", "mean depth weight (a line sums to 1)");
  for (int i = 0; i < num_steps; ++i) {
    const double share = (i + 0.5) / num_steps;
    out.rectangle(left + width * i / num_steps, bar, width / num_steps + 0.3, 12,
                  colour(share * share));
  }
  for (const double weight : {0.0, 0.02, 0.1, 0.25, 0.5, 1.0}) {
    out.text(left + width * std::sqrt(weight), bar + 25, "mark", number(weight, "%g"));
  }
}

}  // namespace

void write_picture(const std::string& path, const std::string& subtitle,
                   const std::vector<titled_map>& maps)
{
  const layout place{maps.front().map->num_calls()};
  canvas out;
  out.text(margin, margin + 14, "title", "What every sublayer reads of the depth below it");
  out.text(margin, margin + 36, "note", subtitle);
  double top = title_height;
  int columns = 1;
  for (const titled_map& scheme : maps) {
    top = draw_scheme(out, place, scheme, top);
    columns = std::max(columns, std::min(scheme.map->num_heads(), panels_per_line));
  }
  // The first scheme has one head: there is room beside it.
  const double guide = place.left(1) + panel_gap;
  draw_guide(out, guide, title_height + scheme_title + panel_title + 14);
  const double width = std::max(place.left(columns) - panel_gap, guide + guide_width) + margin;

  std::ofstream file{path};
  file << out.document(width, top);
  file.close();
  if (!file) { throw std::runtime_error("cannot write the picture to \"" + path + "\""); }
}

}  // namespace quickstart
