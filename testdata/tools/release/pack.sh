#!/bin/sh
# pack.sh VERSION - adds the other files of a release to dist/, which has hpcc-linux-ARCH and share/:
# the licences of the linked modules, a CycloneDX list of components (SBOM) for each binary,
# Debian and RPM packages, checksums. "make release" calls it in the root of the sources.
#
# SOURCE_DATE_EPOCH is the time of all files, by default that of the commit, so that a commit
# always gives the same files. MAINTAINER="NAME <ADDRESS>" is the packages' contact.
set -eu
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
gomod=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
version=$1
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH
export MAINTAINER="${MAINTAINER:-hpcc developers <hpcc@localhost>}"

# Versions of packages begin with a digit, hold no "-", and sort: 1.2.0~rc1, 1.2.0, and
# 1.2.0+5.gabc1234 five commits later. Before the first tag it is 0+gabc1234.
PACKAGE_VERSION=$(printf %s "$version" | sed -E 's/^v//; s/^[0-9a-f]{7,40}(-dirty)?$|^[^0-9]/0+g&/; s/-([0-9]+)-g/+\1.g/; s/-dirty/+dirty/; s/-/~/g')
export PACKAGE_VERSION

gzip -9n dist/share/man/man1/*.1
go run ./testdata/tools/licenses -tags urfave_cli_no_docs ./cmd/hpcc ./cmd/start >dist/THIRD_PARTY_LICENSES
for ARCH in amd64 arm64 ppc64le; do
  export ARCH
  go run "$gomod" bin -json -noserial -notimestamp -std -version "$version" -output "dist/hpcc-linux-$ARCH.cdx.json" "dist/hpcc-linux-$ARCH"
  for packager in deb rpm; do
    go run "$nfpm" package --config testdata/tools/release/nfpm.yaml --packager "$packager" --target dist/
  done
done
cd dist
find . -type f ! -name SHA256SUMS | sed 's|^\./||' | sort | xargs sha256sum >../SHA256SUMS.new
mv ../SHA256SUMS.new SHA256SUMS
