#!/usr/bin/env bash
# Writes a picture of each screen with its screenshots in light and dark at three widths. Arguments: the directory of
# the screenshots, which TestScreens writes with ANNEAL_SCREENSHOTS, and the directory of the pictures. Needs ffmpeg.
set -euo pipefail
from=$1 to=$2
declare -A scaled=([360]=150 [1280]=420 [2560]=620) # widths in the picture, by those of the window
mkdir -p "$to"
for screen in $(ls "$from" | sed -E 's/-(light|dark)-[0-9]+\.jpg$//' | sort -u); do
  inputs=() filter="" i=0
  for scheme in light dark; do
    for width in 360 1280 2560; do
      w=${scaled[$width]}
      inputs+=(-i "$from/$screen-$scheme-$width.jpg")
      filter+="[$i:v]scale=$w:-1,crop=$w:'min(ih,420)':0:0,pad=$w:420:0:0:gray[v$i];"
      i=$((i + 1))
    done
  done
  filter+="[v0][v1][v2]hstack=3[a];[v3][v4][v5]hstack=3[b];[a][b]vstack"
  ffmpeg -hide_banner -loglevel error -y "${inputs[@]}" -filter_complex "$filter" -quality 60 "$to/$screen.webp"
done
