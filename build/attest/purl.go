package attest

import (
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	packageurl "github.com/package-url/packageurl-go"

	"hpcc/store"
)

// PURL returns a package URL (the purl specification): the kind, an optional
// namespace whose parts are separated by slashes, a name, an optional version, and
// qualifiers as KEY, VALUE, ... Qualifiers without a value are left out.
func PURL(kind, namespace, name, version string, qualifiers ...string) string {
	var list packageurl.Qualifiers
	for i := 0; i+1 < len(qualifiers); i += 2 {
		if qualifiers[i+1] != "" {
			list = append(list, packageurl.Qualifier{Key: qualifiers[i], Value: qualifiers[i+1]})
		}
	}
	return packageurl.NewPackageURL(kind, namespace, name, version, list, "").ToString()
}

// ImagePURL returns the package URL of an image's reference, in BuildKit's form.
// A nil platform is left out.
func ImagePURL(ref string, p *v1.Platform) string {
	if c, err := store.Canonical(ref); err == nil {
		ref = c
	}
	repo, digest, _ := strings.Cut(ref, "@")
	tag := ""
	slash := strings.LastIndex(repo, "/")
	if i := strings.LastIndex(repo, ":"); i > slash {
		repo, tag = repo[:i], repo[i+1:]
	} else if digest == "" {
		tag = "latest"
	}
	platform := ""
	if p != nil {
		platform = p.String()
	}
	namespace := ""
	if slash >= 0 {
		namespace = repo[:slash]
	}
	return PURL("docker", namespace, repo[slash+1:], tag, "digest", digest, "platform", platform)
}
