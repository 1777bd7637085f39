# shellcheck shell=bash
# Functions that pack both packages; sourced by build and build-sdn, never run. `begin NAME` makes the folder
# $root to put files into, `finish ARCHITECTURE OUTPUT_DIRECTORY` makes the package of it and prints where it is.
#
# The same files give the same package, whenever and wherever it is packed: every date in it is that of
# the commit, or SOURCE_DATE_EPOCH. COMPRESSION is dpkg-deb's, xz if it is not set.

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

die() {
	printf 'package: %s\n' "$1" >&2
	exit 1
}

begin() {
	name=$1
	root=$stage/$name
	umask 022
	mkdir -p "$root/DEBIAN"
}

put() { install -D -m "$1" "$2" "$root/$3"; }
pack() { gzip -9n <"$1" | install -D -m 644 /dev/stdin "$root/$2.gz"; }

# Adds the copyright and the changelog.
papers() {
	put 644 packaging/debian/copyright "usr/share/doc/$name/copyright"
	{
		printf 'braid (%s) stable; urgency=medium\n\n  * See the history of the project.\n\n' "$version"
		printf ' -- The Braid authors <maintainers@braid.invalid>  %s\n' "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
	} >"$stage/changelog"
	pack "$stage/changelog" "usr/share/doc/$name/changelog"
}

# control FILE [WORD=VALUE…]: the package's description, with each @WORD@ in it replaced.
control() {
	local file=$1 pair words
	shift
	words=(-e "s/@VERSION@/$version/")
	for pair in "$@"; do words+=(-e "s/@${pair%%=*}@/${pair#*=}/"); done
	sed "${words[@]}" "$file" >"$root/DEBIAN/control"
}

# scripts DIRECTORY: what runs when it comes and goes.
scripts() {
	local script
	for script in postinst prerm postrm; do
		[ ! -e "$1/$script" ] || install -m 755 "$1/$script" "$root/DEBIAN/$script"
	done
}

finish() {
	local architecture=$1 output=$2 package
	(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '/%P\n' | sed -n 's,^/etc/,&,p' | sort) \
		>"$root/DEBIAN/conffiles"
	[ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
	(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
	sed -i "/^Architecture:/a Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)" \
		"$root/DEBIAN/control"
	find "$root" -type d -exec chmod 755 {} +
	mkdir -p "$output"
	package=$output/${name}_${version}_$architecture.deb
	dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$root" "$package" >/dev/null
	printf '%s\n' "$package"
}
