#!/usr/bin/env bash
# Packs a finished build: a Debian package, and a wheel for pip. Neither has PyTorch in it: the wheel names it as what it
# needs, the program finds the user's own when it starts (docs/install.md).
#
#   tools/package.sh [deb|wheel|all] [--build DIR] [--out DIR] [--fast]
#     --build DIR   the build (build/release)
#     --out DIR     where the packages go (build/packages)
#     --fast        less compression, for tests
# Of one commit it makes the same bytes again: times in the packages are those of the commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "$0")/.."

what=all
build=build/release
out=build/packages
level=9
while [ $# -gt 0 ]; do
  case "$1" in
    deb|wheel|all) what=$1 ;;
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --fast) level=1 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "package: unknown option $1; see --help" >&2; exit 64 ;;
  esac
  shift
done
fail() { echo "package: $*" >&2; exit 1; }
[ -x "$build/keel" ] || fail "no $build/keel: run tools/bootstrap.sh first"
[ -e "$build/libkeel_torch.so" ] || fail "no $build/libkeel_torch.so: a build without PyTorch is not packed"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
version=$("$build/keel" --version | awk '{ print $2 }')
venv=$(sed -n 's/^KEEL_VENV:[A-Z]*=//p' "$build/CMakeCache.txt")

# stage PREFIX: the installed tree, stripped. Build ids stay, by which the program knows its module.
stage() {
  cmake --install "$build" --prefix "$1" --component runtime --strip > "$work/install.log" 2>&1 ||
    { cat "$work/install.log" >&2; fail "cmake --install failed"; }
  if [ ! -x "$1/bin/keel" ] || [ ! -e "$1/lib/keel/libkeel_torch.so" ]; then fail "what was installed is not whole"; fi
  chmod 644 "$1"/lib/keel/*.so
}

size() { du -h --apparent-size "$1" | cut -f1; }

make_deb() {
  command -v dpkg-shlibdeps > /dev/null || fail "a Debian package needs dpkg-shlibdeps (Debian package dpkg-dev)"
  local root=$work/deb architecture depends maintainer
  stage "$root/usr"
  architecture=$(dpkg --print-architecture)
  # 1. Where Debian has them: examples, and scripts that need a Python, among the documents, the licence as a notice, pages
  # compressed.
  local doc=$root/usr/share/doc/keel
  mv "$root/usr/share/keel/examples" "$doc/examples"
  mv "$root/usr/share/keel/tools" "$doc/examples/tools"
  rm "$doc/LICENSE"
  gzip -9nc "$doc/CHANGELOG.md" > "$doc/changelog.gz"
  rm "$doc/CHANGELOG.md"
  sed "s/@YEAR@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)/" tools/packaging/copyright > "$doc/copyright"
  sed "s/@TORCH@/$(sed -n 's/^torch==//p' requirements.txt)/" tools/packaging/README.Debian > "$doc/README.Debian"
  maintainer="${DEBFULLNAME:-Keel developers} <${DEBEMAIL:-keel@localhost.localdomain}>"
  printf 'keel (%s-1) unstable; urgency=medium\n\n  * Release %s; see changelog.gz.\n\n -- %s  %s\n' "$version" "$version" \
    "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n > "$doc/changelog.Debian.gz"
  find "$root/usr/share/man" -type f -exec gzip -9n {} +
  # 2. The libraries of Debian that it is linked with. PyTorch's and pyarrow's are no package's.
  mkdir -p "$work/shlibs/debian"
  printf 'Source: keel\nPackage: keel\nArchitecture: any\n' > "$work/shlibs/debian/control"
  local private=()
  for folder in "$venv"/lib/python3*/site-packages/{torch/lib,pyarrow,nvidia/*/lib}; do
    [ -d "$folder" ] && private+=("-l$folder")
  done
  depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "${private[@]}" \
    "$root/usr/bin/keel" "$root"/usr/lib/keel/*.so 2> "$work/shlibs/warnings") ||
    { cat "$work/shlibs/warnings" >&2; fail "dpkg-shlibdeps failed"; }
  depends=${depends#shlibs:Depends=}
  # 3. Its control files.
  mkdir -p "$root/DEBIAN"
  sed -e "s/@VERSION@/$version-1/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@MAINTAINER@/$maintainer/" \
    -e "s/@DEPENDS@/$depends/" -e "s/@SIZE@/$(du -sk --apparent-size "$root/usr" | cut -f1)/" \
    tools/packaging/control > "$root/DEBIAN/control"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  chmod -R u+w,go-w,a+rX "$root"
  local package=$out/keel_$version-1_$architecture.deb
  dpkg-deb --root-owner-group -Zxz "-z$level" --build "$root" "$package" > /dev/null
  echo "$package: $(size "$package"), installed $(size "$root/usr/bin/keel") keel, $(du -sh --apparent-size "$root/usr" | cut -f1) in all"
}

make_wheel() {
  local python=$venv/bin/python
  [ -x "$python" ] || python=python3
  stage "$work/wheel"
  # Of another component, where it is built: the Python module of the checkpoints.
  cmake --install "$build" --prefix "$work/wheel" --component python --strip > /dev/null
  "$python" tools/packaging/make_wheel.py --stage "$work/wheel" --version "$version" --requirements requirements.txt \
    --readme README.md --out "$out" --level "$level"
}

if [ "$what" != wheel ]; then make_deb; fi
if [ "$what" != deb ]; then make_wheel; fi
