package attest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/mail"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// software is one installed package, from the records of its package manager.
type software struct {
	kind       string // of package URL: deb, rpm, apk, pypi, conda
	name       string
	version    string
	purl       string
	license    string // as recorded, in any form
	supplier   string // distributor, NAME <ADDRESS>
	originator string // author
	vendor     string // distributor, if the records name an organization
	home       string
	download   string            // address of the package file
	sums       map[string]string // of the package file, by SPDX's names of algorithms
	record     string            // path of the record in the image
}

// A Document is an inventory of packages in SPDX 2.3, to be encoded as JSON.
type Document struct {
	SPDXID            string             `json:"SPDXID"`
	Version           string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	Comment           string             `json:"comment,omitempty"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string         `json:"SPDXID"`
	Name             string         `json:"name"`
	VersionInfo      string         `json:"versionInfo,omitempty"`
	Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	Supplier         string         `json:"supplier,omitempty"`
	Originator       string         `json:"originator,omitempty"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	Homepage         string         `json:"homepage,omitempty"`
	SourceInfo       string         `json:"sourceInfo,omitempty"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	LicenseComments  string         `json:"licenseComments,omitempty"`
	CopyrightText    string         `json:"copyrightText"`
	ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// spdx returns the document of an image's packages. Documents of the same packages differ
// only in the image and the time.
func spdx(image v1.Hash, created time.Time, list []software, notes []string) *Document {
	const document, root = "SPDXRef-DOCUMENT", "SPDXRef-Image"
	doc := &Document{
		SPDXID: document, Version: "SPDX-2.3", DataLicense: "CC0-1.0", Name: image.String(),
		// The form for authors without a web site (SPDX 2.3, 6.5).
		DocumentNamespace: "https://spdx.org/spdxdocs/image-" + image.Algorithm + "-" + image.Hex,
		Comment:           strings.Join(notes, "; "),
		CreationInfo:      spdxCreation{created.UTC().Format(time.RFC3339), []string{"Tool: hpcc"}},
		Packages: []spdxPackage{{SPDXID: root, Name: "image", VersionInfo: image.String(), Purpose: "CONTAINER", DownloadLocation: noAssertion,
			LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion}},
		Relationships: []spdxRelationship{{document, "DESCRIBES", root}},
	}
	seen := map[string]bool{}
	for _, s := range list {
		p := s.spdx()
		if seen[p.SPDXID] {
			continue // a duplicate in the same record
		}
		seen[p.SPDXID] = true
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, spdxRelationship{root, "CONTAINS", p.SPDXID})
	}
	return doc
}

func (s software) spdx() spdxPackage {
	p := spdxPackage{
		SPDXID: s.id(), Name: s.name, VersionInfo: s.version, DownloadLocation: noAssertion, Supplier: agent(s.supplier), Originator: agent(s.originator),
		Homepage: webAddress(s.home), SourceInfo: "recorded in /" + s.record,
		LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", s.purl}},
	}
	if s.vendor != "" {
		p.Supplier = "Organization: " + short(s.vendor)
	}
	if d := webAddress(s.download); d != "" {
		p.DownloadLocation = d
	}
	if l, ok := licenseExpression(s.license); ok {
		p.LicenseDeclared = l
	} else if s.license != "" {
		p.LicenseComments = "declared as " + short(s.license)
	}
	for _, k := range slices.Sorted(maps.Keys(s.sums)) {
		p.Checksums = append(p.Checksums, spdxChecksum{k, s.sums[k]})
	}
	return p
}

// id returns the package's identifier in the document: letters, digits, "." and "-".
func (s software) id() string {
	plain := strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') || r == '.' {
			return r
		}
		return '-'
	}, s.name)
	sum := sha256.Sum256([]byte(s.purl + "\x00" + s.record))
	return fmt.Sprintf("SPDXRef-Package-%s-%.80s-%s", s.kind, plain, hex.EncodeToString(sum[:6]))
}

// agent returns NAME <ADDRESS> in SPDX's form for a person or an organization. Records do
// not distinguish them: a maintainer whose name is that of a group counts as an
// organization.
func agent(s string) string {
	s = short(strings.TrimSpace(s))
	if s == "" {
		return ""
	}
	if a, err := mail.ParseAddress(s); err == nil && a.Name != "" {
		s = a.Name + " (" + a.Address + ")"
	}
	low := strings.ToLower(s)
	for _, w := range []string{"team", "group", "maintainers", "developers", "project", "inc.", "foundation", "authority", "alliance", "packagers"} {
		if strings.Contains(low, w) {
			return "Organization: " + s
		}
	}
	return "Person: " + s
}

// webAddress returns a URL without its credentials, or "" if the text is not a URL.
func webAddress(s string) string {
	for _, scheme := range []string{"https://", "http://", "git+https://", "git+http://", "git+ssh://"} {
		if strings.HasPrefix(s, scheme) && !strings.ContainsAny(s, " \t\r\n<>\"") && len(s) < 4096 {
			return PublicURL(s)
		}
	}
	return ""
}

// short returns a text of the image on one line, truncated to 100 characters.
func short(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " ")
	if r := []rune(s); len(r) > 100 {
		s = string(r[:99]) + "…"
	}
	return s
}
