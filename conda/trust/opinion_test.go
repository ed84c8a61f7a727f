package trust

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"hpcc/testdata/condatest"
	"hpcc/testdata/testenv"
)

// An attempt is a bundle that hpcc and sigstore-go verify (testdata/sigstore reads it).
type attempt struct {
	Root, Bundle             []byte
	SHA256, Identity, Issuer string // Identity is a regular expression

	name          string
	channel, file string
	rule          rule
	other         bool   // the statement is not a publication
	refused       string // hpcc's reason
}

// stricter lists parts of the errors for bundles that hpcc refuses and sigstore-go may accept, with
// the reason.
var stricter = map[string]string{
	"illegal base64 data":               "byte strings are in base64 with padding, which protobuf writes",
	"a byte string has a line break":    "byte strings are in base64 with padding, which protobuf writes",
	"is not a number":                   "integers are decimal, which protobuf writes",
	"a string is not UTF-8":             "U+FFFD stands for invalid text",
	"note has no verifiable signature":  "the name in a checkpoint is the host of the log",
	"invalid URL":                       "the name in a checkpoint is the host of the log",
	"the checkpoint is of another tree": "hpcc compares the size and hash of the tree for Rekor 2, too",
	"at its index":                      "hpcc compares both indexes",
	"about another signature":           "hpcc's log entries have one signature and a hash of the envelope",
	"reading the log entry":             "hpcc refuses unknown fields of a log entry",
	"want a publication (CEP 27)":       "CEP 27 has its own predicate",
	"the statement is about":            "CEP 27 names the file, and has one digest",
	"the statement is for the channel":  "CEP 27 names the channel",
	"the statement has no target":       "CEP 27 names the channel",
	"the statement has 2 subjects":      "CEP 27 has one subject",
}

// TestSigstoreGo compares the verdicts of hpcc with those of sigstore-go. hpcc must not accept a
// bundle that sigstore-go refuses.
func TestSigstoreGo(t *testing.T) {
	testenv.Slow(t)
	all := append(publications(t), signedChanges(t)...)
	for _, base := range bases(t) {
		all = append(all, base)
		for name, bundle := range changes(t, base.Bundle, "") {
			a := base
			a.name, a.Bundle = base.name+": bundle: "+name, bundle
			all = append(all, a)
		}
		if base.other {
			continue
		}
		for name, root := range changes(t, base.Root, "") {
			a := base
			a.name, a.Root = base.name+": root: "+name, root
			all = append(all, a)
		}
	}
	used := map[string]int{}
	accepted := 0
	var workers sync.WaitGroup
	const count = 4
	for first := range count {
		workers.Go(func() {
			for i := first; i < len(all); i += count {
				all[i].verify()
			}
		})
	}
	reasons := judge(t, all)
	workers.Wait()
	for i, theirs := range reasons {
		a := &all[i]
		if slices.Contains([]string{"valid", "instance", "real", "real without the log's time", "Rekor 2"}, a.name) && a.refused+theirs != "" {
			t.Errorf("%s: hpcc: %s; sigstore-go: %s; want both to accept it", a.name, a.refused, theirs)
		}
		switch {
		case a.refused == "" && theirs == "":
			accepted++
		case a.refused == "" && theirs != "":
			t.Errorf("%s: hpcc accepts it; sigstore-go: %s\n%s", a.name, theirs, a.Bundle)
		case a.refused != "" && theirs == "":
			known := false
			for part := range stricter {
				if strings.Contains(a.refused, part) {
					known = true
					used[part]++
				}
			}
			if !known {
				t.Errorf("%s: sigstore-go accepts it; hpcc: %s", a.name, a.refused)
			}
		}
	}
	for part, reason := range stricter {
		if used[part] == 0 {
			t.Errorf("no bundle shows that hpcc is stricter: %q (%s)", part, reason)
		}
	}
	t.Logf("%d attempts: both accept %d, only sigstore-go accepts %v", len(all), accepted, used)
}

// verify sets the reason for which hpcc refuses the bundle.
func (a *attempt) verify() {
	root, err := parseRoot(a.Root)
	if err == nil {
		p := Policy{rules: []rule{a.rule}, root: root}
		if a.other {
			err = a.verifySigner(root)
		} else {
			_, err = p.Verify(sidecar(a.Bundle), a.channel, a.file, a.SHA256)
		}
	}
	if err != nil {
		a.refused = err.Error()
	}
}

// verifySigner verifies a bundle without its statement.
func (a *attempt) verifySigner(root *trustedRoot) error {
	b, err := parseBundle(a.Bundle)
	if err != nil {
		return err
	}
	who, err := root.verify(b)
	if err == nil && !a.rule.accepts(who) {
		err = fmt.Errorf("another signer: %v", who)
	}
	return err
}

// judge returns the reasons for which sigstore-go refuses bundles, or "".
func judge(t *testing.T, all []attempt) (reasons []string) {
	t.Helper()
	testenv.NeedProgram(t, "go")
	const dir = "../../testdata/sigstore"
	list := exec.Command("go", "list", "-mod=readonly", "-deps", ".") // downloads the modules
	list.Dir = dir
	if out, err := list.CombinedOutput(); err != nil {
		testenv.Need(t, "the modules of testdata/sigstore", fmt.Errorf("%w: %s", err, out))
	}
	program := filepath.Join(t.TempDir(), "sigstore")
	build := exec.Command("go", "build", "-mod=readonly", "-o", program, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building testdata/sigstore: %v\n%s", err, out)
	}
	var in, out bytes.Buffer
	e := json.NewEncoder(&in)
	for i := range all {
		testenv.Check(t, e.Encode(&all[i]))
	}
	run := exec.Command(program)
	run.Stdin, run.Stdout, run.Stderr = &in, &out, os.Stderr
	testenv.Check(t, run.Run())
	d := json.NewDecoder(&out)
	for range all {
		var v struct{ Refused string }
		testenv.Check(t, d.Decode(&v))
		reasons = append(reasons, v.Refused)
	}
	return reasons
}

// publications returns the bundles of TestVerify.
func publications(t *testing.T) (all []attempt) {
	s := condatest.NewSigstore(t)
	root := s.TrustedRoot(t)
	for _, c := range verifyCases {
		pub := valid()
		c.change(&pub)
		all = append(all, ours(c.name, root, s.Attest(t, pub)))
	}
	other := condatest.NewSigstore(t)
	var a, b map[string]any
	testenv.Check(t, json.Unmarshal(s.Attest(t, valid()), &a))
	testenv.Check(t, json.Unmarshal(s.Attest(t, valid()), &b))
	in(b, "verificationMaterial")["tlogEntries"] = in(a, "verificationMaterial")["tlogEntries"]
	return append(all, ours("entry of another bundle", root, encode(t, b)), ours("another instance", root, other.Attest(t, valid())))
}

// signedChanges returns bundles with validly signed changes of the statement and of the log entry.
func signedChanges(t *testing.T) (all []attempt) {
	s := condatest.NewSigstore(t)
	root := s.TrustedRoot(t)
	for part, set := range map[string]func(*condatest.Publication, func([]byte) []byte){
		"statement": func(p *condatest.Publication, change func([]byte) []byte) { p.Payload = change },
		"log entry": func(p *condatest.Publication, change func([]byte) []byte) { p.Body = change },
	} {
		var names []string
		pub := valid()
		set(&pub, func(text []byte) []byte {
			names = slices.Sorted(maps.Keys(changes(t, text, "")))
			return text
		})
		s.Attest(t, pub)
		for _, name := range names {
			set(&pub, func(text []byte) []byte { return changes(t, text, name)[name] })
			all = append(all, ours(part+": "+name, root, s.Attest(t, pub)))
		}
	}
	return all
}

// ours returns an attempt with a bundle of a test instance.
func ours(name string, root, bundle []byte) attempt {
	return attempt{name: name, Root: root, Bundle: bundle, SHA256: digest, Identity: `^https://git\.example/lab/.*@refs/tags/.*$`, Issuer: issuer, channel: channel, file: file,
		rule: rule{Channel: channel, Target: channel, Identity: "https://git.example/lab/*@refs/tags/*", Issuer: issuer}}
}

// bases returns valid bundles: of a test instance, of prefix.dev, whose time a log and an authority
// prove, and of a log of Rekor 2.
func bases(t *testing.T) []attempt {
	s := condatest.NewSigstore(t)
	mine := ours("instance", s.TrustedRoot(t), s.Attest(t, valid()))
	root, err := os.ReadFile("testdata/trusted_root.json")
	testenv.Check(t, err)
	text, err := os.ReadFile("testdata/" + realFile + ".sigs")
	testenv.Check(t, err)
	var raw []json.RawMessage
	testenv.Check(t, json.Unmarshal(text, &raw))
	real := attempt{name: "real", Root: root, Bundle: raw[0], SHA256: realDigest, Identity: "^https://github.com/hunger/octoconda/.*@refs/heads/main$", Issuer: realIssuer, channel: realChannel, file: realFile,
		rule: rule{Channel: realChannel, Target: realChannel, Identity: "https://github.com/hunger/octoconda/*@refs/heads/main", Issuer: realIssuer}}
	stamped := real
	stamped.name = "real without the log's time"
	var b map[string]any
	testenv.Check(t, json.Unmarshal(raw[0], &b))
	delete(in(b, "verificationMaterial", "tlogEntries"), "inclusionPromise")
	stamped.Bundle = encode(t, b)
	rekor2 := attempt{name: "Rekor 2", other: true, SHA256: "a0cfc71271d6e278e57cd332ff957c3f7043fdda354c4cbb190a30d56efa01bf", Identity: "^https://github.com/sigstore-conformance/.*$", Issuer: realIssuer,
		rule: rule{Identity: "https://github.com/sigstore-conformance/*", Issuer: realIssuer}}
	rekor2.Root, err = os.ReadFile("testdata/staging_root.json") // of Sigstore's staging instance
	testenv.Check(t, err)
	rekor2.Bundle, err = os.ReadFile("testdata/slsa-rekor2.sigstore.json")
	testenv.Check(t, err)
	return []attempt{mine, real, stamped, rekor2}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	testenv.Check(t, err)
	return b
}

// changes returns changed JSON texts by name: bytes of the text, and fields. If only is not empty,
// it returns that one.
func changes(t *testing.T, text []byte, only string) map[string][]byte {
	all := map[string][]byte{}
	const bytesChanged = 40
	for n := range bytesChanged {
		i := n * len(text) / bytesChanged
		for _, bit := range []byte{1, 0x20, 0x80} {
			changed := bytes.Clone(text)
			changed[i] ^= bit
			all[fmt.Sprintf("byte %d ^ %#x", i, bit)] = changed
		}
	}
	var v any
	testenv.Check(t, json.Unmarshal(text, &v))
	alter("", v, func(name string, set func(any), values ...any) {
		for i, value := range values {
			if name := fmt.Sprintf("%s, change %d", name, i); only == "" || name == only {
				set(value)
				all[name] = encode(t, v)
			}
		}
	}, func(changed any) { v = changed })
	return all
}

// alter calls change for each value in v, with new values and a function that sets one. After it,
// v is as before.
func alter(path string, v any, change func(name string, set func(any), values ...any), set func(any)) {
	switch old := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(old)) {
			value := old[key]
			alter(path+"."+key, value, change, func(v any) { old[key] = v })
			delete(old, key)
			change(path+" without "+key, set, old)
			old[strings.ToUpper(key)] = value
			change(path+" with another case of "+key, set, old)
			delete(old, strings.ToUpper(key))
			old[key] = value
		}
		old["unknown"] = "x"
		change(path+" with another key", set, old)
		delete(old, "unknown")
		change(path, set, map[string]any{}, []any{}, nil)
	case []any:
		for i, value := range old {
			alter(fmt.Sprint(path, "[", i, "]"), value, change, func(v any) { old[i] = v })
		}
		change(path, set, append(slices.Clone(old), old...), []any{}, nil, append(slices.Clone(old), nil))
	case string:
		change(path, set, changedTexts(old)...)
	}
	set(v)
}

// changedTexts returns changes of a string: of its bytes, of the bytes that it encodes, and of its
// number.
func changedTexts(s string) []any {
	out := []any{"", nil, s + "x", " " + s, "\ufffd" + s, 7, "-1"}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return append(out, fmt.Sprint(n+1), n, "+"+s, "0"+s, s+".0", s+"e0", float64(n))
	}
	if at, zone, ok := strings.Cut(s, "Z"); ok && zone == "" {
		return append(out, at+"+00:00", at+"+01:00", at+".5Z", at, strings.ToLower(s), "2"+s, "2099-01-01T00:00:00Z")
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) == 0 {
		return append(out, strings.ToUpper(s), s[:len(s)/2])
	}
	for n := range 8 {
		changed := bytes.Clone(b)
		changed[n*(len(b)-1)/7] ^= 1
		out = append(out, changed)
	}
	return append(out, b[:len(b)-1], append(bytes.Clone(b), 0), base64.URLEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b), s+"\n")
}
