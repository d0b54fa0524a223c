#!/bin/bash
# Builds the SIMT resolver for Ascend 950 and puts it beside the installed package. See docs/ascend950.md.
#
#   build.sh [--soc ascend950] [--build-dir DIR] [--install-dir DIR]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
soc=ascend950
build_dir=build/ascend950
install_dir=
python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
  case $1 in
    --soc) soc=$2 ;;
    --build-dir) build_dir=$2 ;;
    --install-dir) install_dir=$2 ;;
    *) echo "build.sh: unknown option $1; options: --soc, --build-dir, --install-dir" >&2; exit 2 ;;
  esac
  shift 2
done

missing=$(cmake -DSOC="$soc" -P "$here/simt_cann.cmake" 2>&1)
if [ -n "$missing" ]; then
  echo "build.sh: nothing is built: ${missing#ascend950: }" >&2
  exit 1
fi
if ! reason=$("$python" -c 'import torch_npu' 2>&1); then
  echo "build.sh: nothing is built: $python cannot import torch_npu: ${reason##*$'\n'}" >&2
  exit 1
fi
[ -n "$install_dir" ] || install_dir=$("$python" -c 'import hisparse_ops, os; print(os.path.dirname(hisparse_ops.__file__))')

cmake -S "$here" -B "$build_dir" -DSOC="$soc" -DPython3_EXECUTABLE="$(command -v "$python")"
cmake --build "$build_dir" -j
# The package of the op installs its library and kernels under the directory that the adapter's loader names in
# ASCEND_CUSTOM_OPP_PATH.
for package in "$build_dir"/*.run; do
  bash "$package" --quiet --install-path="$install_dir/ascend950_opp"
done
cp "$build_dir/libhisparse_ascend950.so" "$install_dir/"
echo "built $install_dir/libhisparse_ascend950.so"
