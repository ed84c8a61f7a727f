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

// software is one installed package as its package manager's records have it.
type software struct {
	kind       string // of package URL: deb, rpm, apk, pypi, conda
	name       string
	version    string
	purl       string
	license    string // as the records say, whatever its form
	supplier   string // NAME <ADDRESS>: who distributes it
	originator string // who made it
	vendor     string // an organization that distributes it, where the records know it for one
	home       string
	download   string            // where it came from
	sums       map[string]string // of the package file, by SPDX's names of algorithms
	record     string            // path of the record in the image
}

// A Document is an inventory of packages in the form of SPDX 2.3, to be written as JSON.
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

// spdx writes the document of an image's packages. Only the image and the
// time make one document differ from another of the same packages.
func spdx(image v1.Hash, created time.Time, list []software, notes []string) *Document {
	const document, root = "SPDXRef-DOCUMENT", "SPDXRef-Image"
	doc := &Document{
		SPDXID: document, Version: "SPDX-2.3", DataLicense: "CC0-1.0", Name: image.String(),
		// The form for those without a web site of their own (SPDX 2.3, 6.5).
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
			continue // the same package in the same record
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

// id names the package in the document: letters, digits, "." and "-".
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

// agent writes NAME <ADDRESS> as SPDX has people and organizations. Which one
// it is, the records do not say: maintainers of distributions that call
// themselves a group are taken for one.
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

// webAddress is a URL that a document may show: without credentials; "" for
// what is none.
func webAddress(s string) string {
	for _, scheme := range []string{"https://", "http://", "git+https://", "git+http://", "git+ssh://"} {
		if strings.HasPrefix(s, scheme) && !strings.ContainsAny(s, " \t\r\n<>\"") && len(s) < 4096 {
			return PublicURL(s)
		}
	}
	return ""
}

// short returns a text of the image on one line of at most 100 characters.
func short(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " ")
	if r := []rune(s); len(r) > 100 {
		s = string(r[:99]) + "…"
	}
	return s
}
