// Package trust verifies the attestations of conda packages: signed statements of who published
// a package, in which channel (CEP 27). A policy names the channels whose packages need one.
//
//	channel → Policy.Covers → sidecar, a list of Sigstore bundles → Policy.Verify → signer
//
// A bundle holds the statement, its signature, the certificate of the key, and the entry of a
// transparency log. The keys of all authorities come from a trusted_root.json, without network
// access. The package verifies with the standard library's cryptography: sigstore-go would add
// 7.2 MB (30 %) to the binary and 4 ms to the start of each command.
package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/store/wait"
)

// A Policy is the content of a policy file: channels, and who publishes in them.
type Policy struct {
	File  string
	rules []rule
	root  *trustedRoot
}

// A rule accepts an identity for the packages of a channel.
type rule struct {
	Channel  string `yaml:"channel"`  // URL, or "*" for all packages without another rule
	Identity string `yaml:"identity"` // of the certificate; "*" matches any text
	Issuer   string `yaml:"issuer"`   // URL of the service that verified the identity
	Target   string `yaml:"target"`   // channel that statements name; "": Channel
}

// Limits in bytes. A bundle has about 11 KB.
const (
	maxPolicy  = 1 << 20
	maxRoot    = 4 << 20
	maxSidecar = 4 << 20
	maxBundles = 100 // of a sidecar
	maxProofs  = 32  // entries of logs, and timestamps, of a bundle
)

// ReadPolicies reads the policy files that exist: the machine's and the user's, or only
// $HPCC_TRUST. A package must satisfy each policy that covers it.
func ReadPolicies(getenv func(string) string) ([]*Policy, error) {
	files := []string{"/etc/hpcc/trust.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "hpcc", "trust.yaml"))
	}
	only := getenv("HPCC_TRUST")
	if only != "" {
		files = []string{only}
	}
	var all []*Policy
	for _, file := range files {
		text, err := wait.ReadFile(file, maxPolicy)
		if errors.Is(err, fs.ErrNotExist) && only == "" {
			continue
		}
		var p *Policy
		if err == nil {
			p, err = parsePolicy(file, text)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the policy of channels %s: %w", file, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// parsePolicy parses a policy file and reads its trusted root.
func parsePolicy(file string, text []byte) (*Policy, error) {
	var f struct {
		Root  string `yaml:"trusted_root"` // path, relative to the file
		Rules []rule `yaml:"channels"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && err != io.EOF {
		return nil, plainYAML(err)
	}
	var nodes struct {
		Rules []yaml.Node `yaml:"channels"`
	}
	if err := yaml.Unmarshal(text, &nodes); err != nil {
		return nil, plainYAML(err)
	}
	if len(f.Rules) == 0 {
		return nil, errors.New("it has no channels; add entries with channel, identity and issuer")
	}
	for i := range f.Rules {
		r := &f.Rules[i]
		r.Channel, r.Target = strings.TrimRight(r.Channel, "/"), strings.TrimRight(r.Target, "/")
		switch {
		case r.Channel == "" || r.Identity == "" || r.Issuer == "":
			return nil, fmt.Errorf("line %d: the entry needs channel, identity and issuer", nodes.Rules[i].Line)
		case r.Channel != "*" && !strings.Contains(r.Channel, "://"):
			return nil, fmt.Errorf("line %d: channel %q is not a URL or *", nodes.Rules[i].Line, r.Channel)
		case r.Target == "" && r.Channel != "*":
			r.Target = r.Channel
		}
	}
	if f.Root == "" {
		return nil, errors.New("it has no trusted_root; name the trusted_root.json of your Sigstore instance")
	}
	if !filepath.IsAbs(f.Root) {
		f.Root = filepath.Join(filepath.Dir(file), f.Root)
	}
	b, err := wait.ReadFile(f.Root, maxRoot)
	if err != nil {
		return nil, err
	}
	root, err := parseRoot(b)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root %s: %w", f.Root, err)
	}
	return &Policy{File: file, rules: f.Rules, root: root}, nil
}

// goType matches the name of a Go type in an error of the YAML decoder.
var goType = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` in type \S+`) })

// plainYAML returns an error of the YAML decoder without the names of Go types.
func plainYAML(err error) error {
	return errors.New(goType().ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), ""))
}

// plainURL returns a URL in the form in which equal URLs are equal texts.
func plainURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme { // the parser writes it in lower case
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	return u.Scheme + "://" + host + path.Clean("/"+u.Path)
}

// matching returns the rules for a channel.
func (p *Policy) matching(channel string) (rules []rule) {
	channel = plainURL(channel) + "/"
	for _, r := range p.rules {
		if r.Channel != "*" && strings.HasPrefix(channel, plainURL(r.Channel)+"/") {
			rules = append(rules, r)
		}
	}
	for _, r := range p.rules {
		if r.Channel == "*" && len(rules) == 0 {
			return []rule{r}
		}
	}
	return rules
}

// Covers reports whether the packages of a channel need an attestation. channel is a URL without
// credentials.
func (p *Policy) Covers(channel string) bool { return len(p.matching(channel)) > 0 }

// Verify verifies that the sidecar of a package has a valid attestation for the file with a
// hexadecimal SHA-256, by an identity that the policy accepts for the channel. It returns the
// identity.
func (p *Policy) Verify(sidecar []byte, channel, file, sha256 string) (signer string, err error) {
	if len(sidecar) > maxSidecar {
		return "", fmt.Errorf("the attestations are larger than %d bytes", maxSidecar)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(sidecar, &raw); err != nil {
		return "", fmt.Errorf("the attestations are not a JSON array: %w", err)
	}
	if len(raw) == 0 || len(raw) > maxBundles {
		return "", fmt.Errorf("the sidecar has %d attestations; want 1 to %d", len(raw), maxBundles)
	}
	var reasons []string
	for i, text := range raw {
		signer, err := p.verifyOne(text, channel, file, sha256)
		if err == nil {
			return signer, nil
		}
		reasons = append(reasons, fmt.Sprintf("attestation %d: %v", i+1, err))
	}
	return "", errors.New(strings.Join(reasons, "; "))
}

// verifyOne verifies one bundle.
func (p *Policy) verifyOne(text []byte, channel, file, sha256 string) (signer string, err error) {
	b, err := parseBundle(text)
	if err != nil {
		return "", err
	}
	who, err := p.root.verify(b)
	if err != nil {
		return "", err
	}
	target, err := b.published(file, sha256)
	if err != nil {
		return "", err
	}
	var elsewhere string
	for _, r := range p.matching(channel) {
		if !r.accepts(who) {
			continue
		}
		if target == "" || r.Target == "" || target == r.Target {
			return who.name, nil
		}
		elsewhere = r.Target
	}
	if elsewhere != "" {
		return "", fmt.Errorf("the statement is for the channel %.200q, not %q", target, elsewhere)
	}
	return "", fmt.Errorf("the policy does not accept the signer %.200q with issuer %.200q", who.name, who.issuer)
}

// accepts reports whether a rule accepts a signer.
func (r rule) accepts(who identity) bool {
	parts := strings.Split(r.Identity, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	pattern, err := regexp.Compile(`(?s)\A` + strings.Join(parts, ".*") + `\z`)
	return err == nil && who.issuer == r.Issuer && pattern.MatchString(who.name)
}
