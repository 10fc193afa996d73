# Installs the cargo tools of packages and releases below target/tools, in fixed versions. Sourced after lib.sh, not run.
# shellcheck shell=bash

tools=${DDPD_TOOLS:-$target/tools}
export PATH=$tools/bin:$PATH

# cargo_tool NAME: builds the tool unless the project's version is installed. A debug build suffices: its speed does not matter.
cargo_tool() {
    local name=$1 version
    case $name in
        cargo-deb) version=3.8.0 ;;
        cargo-generate-rpm) version=0.21.1 ;;
        cargo-auditable) version=0.7.7 ;;
        cargo-cyclonedx) version=0.5.9 ;;
        cargo-deny) version=0.20.2 ;;
        *) die "no version of $name is chosen" ;;
    esac
    if grep -qs "^\"$name $version " "$tools/.crates.toml"; then return; fi
    say "building $name $version"
    cargo install --debug --locked -q --root "$tools" --target-dir "$tools-build" "$name@$version" ||
        die "$name $version cannot be built"
}
