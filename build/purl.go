package build

import (
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// purl writes a package URL (the purl specification): the kind, an optional
// namespace of parts with slashes, a name, an optional version, and qualifiers
// as KEY, VALUE, ...; those without a value are left out.
func purl(kind, namespace, name, version string, qualifiers ...string) string {
	var b strings.Builder
	b.WriteString("pkg:" + kind + "/")
	for part := range strings.SplitSeq(namespace, "/") {
		if part != "" {
			b.WriteString(purlEscape(part) + "/")
		}
	}
	b.WriteString(purlEscape(name))
	if version != "" {
		b.WriteString("@" + purlEscape(version))
	}
	var list []string
	for i := 0; i+1 < len(qualifiers); i += 2 {
		if qualifiers[i+1] != "" {
			list = append(list, qualifiers[i]+"="+purlEscape(qualifiers[i+1]))
		}
	}
	slices.Sort(list)
	if len(list) > 0 {
		b.WriteString("?" + strings.Join(list, "&"))
	}
	return b.String()
}

// purlEscape percent-encodes all but the characters that the specification
// wants as they are.
func purlEscape(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(".-_~:", c) >= 0:
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// imagePURL is the package URL of an image's reference, as BuildKit writes it.
func imagePURL(ref string, p *v1.Platform) string {
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
	return purl("docker", namespace, repo[slash+1:], tag, "digest", digest, "platform", platform)
}
