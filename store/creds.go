package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.yaml.in/yaml/v3"

	"hpcc/files"
)

// StaysLocal is the registry name for images that stay in the store.
const StaysLocal = "none"

// Limits for a creds.yaml and a password file, in bytes.
const (
	maxCreds    = 1 << 20
	maxPassword = 64 << 10
)

// A Registry is an entry of a creds.yaml.
type Registry struct {
	Name string
	Host string // registry.example:5000
	Path string // prefix of image names: team/images; may be ""

	file         string // creds.yaml
	found        bool   // file is untrusted: it was found in the current directory
	line         int
	plainHTTP    bool
	tls          bool
	username     credsValue
	password     credsValue
	token        credsValue
	passwordFile credsValue
}

// A credsValue is a value of a creds.yaml, unexpanded, with its line.
type credsValue struct {
	text string
	line int
}

// Registries holds the entries of one or two creds.yaml files. The zero value has none.
type Registries struct {
	Files    []string // files that were read
	Shadowed []string // names in ./creds.yaml that the user's own file overrides
	Skipped  error    // why ./creds.yaml was not read; nil if it was read or does not exist
	list     []*Registry
}

// Where returns the file names for messages, or "".
func (rs *Registries) Where() string { return strings.Join(rs.Files, " and ") }

// findRegistries reads the default registries: the user's own file, hpcc/creds.yaml in the
// configuration directory, and creds.yaml in the current directory. The latter may come from
// somebody else's repository, so it is not trusted: its entries cannot replace the user's
// own; see also [Registry.Remote].
func findRegistries() (*Registries, error) {
	places := credsPlaces()
	rs := &Registries{}
	for _, file := range places[1:] {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		own, err := ReadRegistries(file)
		if err != nil {
			return nil, err
		}
		rs = own
	}
	found, err := readFound(places[0], rs.Files)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rs, nil
	case err != nil && len(rs.Files) == 0:
		return nil, err
	case err != nil:
		rs.Skipped = err
		return rs, nil
	}
	rs.add(found)
	return rs, nil
}

// add adds the entries of an untrusted file.
func (rs *Registries) add(found *Registries) {
	own := rs.Names()
	for _, r := range found.list {
		if slices.Contains(own, r.Name) {
			rs.Shadowed = append(rs.Shadowed, r.Name)
			continue
		}
		r.found = true
		rs.list = append(rs.list, r)
	}
	rs.Files = append(rs.Files, found.Files...)
}

// readFound reads the creds.yaml of the current directory. It returns [fs.ErrNotExist] if
// the file is missing or was already read.
func readFound(name string, before []string) (*Registries, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return nil, fmt.Errorf("reading registries: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading registries: %w", err)
	}
	for _, file := range before {
		if b, err := os.Stat(file); err == nil && os.SameFile(fi, b) {
			return nil, fs.ErrNotExist
		}
	}
	if name, err = filepath.Abs(name); err != nil {
		return nil, fmt.Errorf("reading registries: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !ok || int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to another user: name it with --creds to trust it", name)
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: name it with --creds to trust it", name)
	}
	return readRegistries(f, name)
}

// credsPlaces returns the default paths of creds.yaml: in the current directory, and the
// user's own file.
func credsPlaces() []string {
	places := []string{"creds.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		places = append(places, filepath.Join(dir, "hpcc", "creds.yaml"))
	}
	return places
}

// SecretFiles returns the files that must not get into an image: each creds.yaml that hpcc may read, and the
// password files that they name. file is a creds.yaml that the user names, or "". warnings are about
// files that cannot be read.
func SecretFiles(file string) (secret, warnings []string) {
	for _, f := range append(credsPlaces(), file, os.Getenv("HPCC_CREDS")) {
		if fi, err := os.Stat(f); err != nil || !fi.Mode().IsRegular() { // COPY copies only regular files
			continue
		}
		rs, err := ReadRegistries(f)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s may get into the image: %v", f, err))
			continue
		}
		secret = append(secret, rs.Secrets()...)
	}
	return secret, warnings
}

// ReadRegistries reads a creds.yaml: a list of entries, a list or map of them under
// "registries", a list under "registry", a map from names to entries, or one entry. Unknown fields are refused with
// their line. Errors never contain values. If file is "", it reads the files of
// [credsPlaces].
func ReadRegistries(file string) (*Registries, error) {
	if file == "" {
		return findRegistries()
	}
	f, err := files.Open(file)
	if err != nil {
		return nil, fmt.Errorf("reading registries: %w", err)
	}
	defer f.Close()
	return readRegistries(f, file)
}

func readRegistries(f io.Reader, file string) (*Registries, error) {
	text, err := readBounded(f, file, maxCreds)
	if err != nil {
		return nil, fmt.Errorf("reading registries: %w", err)
	}
	list, err := parseCreds(text)
	if err != nil {
		return nil, fmt.Errorf("reading registries: %s:%w", file, err)
	}
	for _, r := range list {
		r.file = file
	}
	return &Registries{Files: []string{file}, list: list}, nil
}

// readAtMost reads a small file.
func readAtMost(file string, most int64) ([]byte, error) {
	f, err := files.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, file, most)
}

func readBounded(r io.Reader, file string, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", file, most)
	}
	return b, err
}

// Names returns the registry names in file order.
func (rs *Registries) Names() []string {
	var names []string
	for _, r := range rs.list {
		names = append(names, r.Name)
	}
	return names
}

// Find returns the registry of that name. [StaysLocal] needs no entry.
func (rs *Registries) Find(name string) (*Registry, error) {
	for _, r := range rs.list {
		if r.Name == name {
			return r, nil
		}
	}
	switch {
	case name == StaysLocal:
		return &Registry{Name: name}, nil
	case rs.Skipped != nil:
		return nil, fmt.Errorf("no registry %q in %s; and %w", name, rs.Where(), rs.Skipped)
	case len(rs.Files) == 0:
		return nil, fmt.Errorf("no registry %q: there is no creds.yaml", name)
	case len(rs.list) == 0:
		return nil, fmt.Errorf("no registry %q: %s has no entries", name, rs.Where())
	}
	return nil, fmt.Errorf("no registry %q in %s: it has %s", name, rs.Where(), strings.Join(rs.Names(), ", "))
}

// Exposed returns a file that holds a password and that other users can read, according to
// its mode, or "".
func (rs *Registries) Exposed() string {
	for _, r := range rs.list {
		fi, err := os.Stat(r.file)
		if err == nil && fi.Mode().Perm()&0o077 != 0 && (r.password.literal() || r.token.literal()) {
			return r.file
		}
	}
	return ""
}

// Secrets returns the files with secrets: registry files and password files.
func (rs *Registries) Secrets() []string {
	files := slices.Clone(rs.Files)
	for _, r := range rs.list {
		if f, err := r.passwordPath(); err == nil && r.passwordFile.text != "" {
			files = append(files, f)
		}
	}
	return files
}

// From describes the entry for messages.
func (r *Registry) From() string { return fmt.Sprintf("entry %q of %s", r.Name, r.file) }

// Reference returns the image's name in the registry: the registry's host and path, followed
// by the image's name and tag. If the name already contains a registry, it must be this one.
func (r *Registry) Reference(image string) (string, error) {
	c, err := Canonical(image)
	if err != nil {
		return "", err
	}
	if strings.Contains(image, "@") || hexDigest().MatchString(image) {
		return "", fmt.Errorf("%q is a digest, but an image in a registry needs a name", image)
	}
	base := r.Host + "/"
	if r.Path != "" {
		base += r.Path + "/"
	}
	first, _, qualified := strings.Cut(c, "/")
	switch {
	case strings.HasPrefix(c, base):
		base = ""
	case qualified && (strings.ContainsAny(first, ".:") || first == "localhost"):
		return "", fmt.Errorf("%q names the registry %s, but %q is %s", image, first, r.Name, strings.TrimSuffix(base, "/"))
	}
	ref := base + c
	if !strings.Contains(ref[strings.LastIndexByte(ref, '/'):], ":") {
		ref += ":latest"
	}
	if _, err := parseRef(ref); err != nil {
		return "", fmt.Errorf("%q in registry %q: %w", image, r.Name, err)
	}
	return ref, nil
}

// Remote returns the connection options for the registry. It reads variables and the
// password file now. An entry of a file found in the current directory may use neither: it
// could send secrets that it does not contain to any host. It may not use plain HTTP either,
// which would expose a stored login for the host.
func (r *Registry) Remote() (Remote, error) {
	if line := r.outside(); r.found && line > 0 {
		return Remote{}, fmt.Errorf("%s:%d: a creds.yaml found in the current directory may not use variables, password files or http://; if you trust it, name it with --creds", r.file, line)
	}
	o := Remote{PlainHTTP: r.plainHTTP, TLS: r.tls, Credentials: &credentials{From: r.From()}}
	fail := func(v credsValue, err error) (Remote, error) {
		return o, fmt.Errorf("reading the credentials of registry %q, %s:%d: %w", r.Name, r.file, v.line, err)
	}
	var err error
	if o.Credentials.Username, err = r.username.expand(); err != nil {
		return fail(r.username, err)
	}
	password, err := r.password.expand()
	if err != nil {
		return fail(r.password, err)
	}
	token, err := r.token.expand()
	if err != nil {
		return fail(r.token, err)
	}
	if r.passwordFile.text != "" {
		if password, err = r.readPassword(); err != nil {
			return fail(r.passwordFile, err)
		}
	}
	o.Credentials.Password = secret(password)
	if o.Credentials.Username != "" && token != "" { // the form in which registries accept user tokens
		o.Credentials.Password, token = secret(token), ""
	}
	o.Credentials.Token = secret(token)
	return o, nil
}

// outside returns the line of a value that reads a secret from outside the file or sends one
// unencrypted, or 0.
func (r *Registry) outside() int {
	for _, v := range []credsValue{r.username, r.password, r.token} {
		for _, as := range credsVariable().FindAllString(v.text, -1) {
			if !strings.HasPrefix(as, "$$") {
				return v.line
			}
		}
	}
	if r.passwordFile.text != "" {
		return r.passwordFile.line
	}
	if u, err := url.Parse("//" + r.Host); r.plainHTTP && (err != nil || !isLoopback(u.Hostname())) {
		return r.line
	}
	return 0
}

// passwordPath returns the path of the password file. Relative paths start at the directory
// of creds.yaml, "~/" at the home directory.
func (r *Registry) passwordPath() (string, error) {
	file, err := r.passwordFile.expand()
	if err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		home, err := os.UserHomeDir()
		return filepath.Join(home, rest), err
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(r.file), file)
	}
	return file, nil
}

// readPassword reads the first line of the password file.
func (r *Registry) readPassword() (string, error) {
	file, err := r.passwordPath()
	if err != nil {
		return "", err
	}
	b, err := readAtMost(file, maxPassword)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("the first line of %s is empty", file)
	}
	return line, nil
}

var credsVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$?\$\{([^}]*)\}`) })

// literal reports whether the value contains no variables.
func (v credsValue) literal() bool {
	return credsVariable().ReplaceAllStringFunc(v.text, func(as string) string {
		if strings.HasPrefix(as, "$$") {
			return as
		}
		return ""
	}) != ""
}

// expand replaces environment variables of the form ${NAME}. $${NAME} is an escaped ${NAME}.
func (v credsValue) expand() (string, error) {
	var err error
	text := credsVariable().ReplaceAllStringFunc(v.text, func(as string) string {
		if strings.HasPrefix(as, "$$") {
			return as[1:]
		}
		name := as[2 : len(as)-1]
		value, ok := os.LookupEnv(name)
		switch {
		case !variableName().MatchString(name):
			err = errors.New("${…} does not contain a variable name; write $${ for a literal ${")
		case !ok || value == "":
			err = fmt.Errorf("the variable %s is not set", name)
		}
		return value
	})
	if err == nil && strings.ContainsAny(text, "\r\n\x00") {
		err = errors.New("the value has more than one line")
	}
	return text, err
}

var variableName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// A credsError describes an error in a creds.yaml, with its line. It contains no values,
// because any of them may be a misplaced secret.
type credsError struct {
	line int
	what string
}

func (e *credsError) Error() string { return fmt.Sprintf("%d: %s", e.line, e.what) }

// parseCreds parses a creds.yaml.
func parseCreds(text []byte) ([]*Registry, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = d.Decode(&more); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			return nil, &credsError{more.Line, "a second document starts here; only one is allowed"}
		}
	}
	if err != nil {
		line := 1
		if m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		return nil, &credsError{line, "invalid YAML; put a password with characters such as : # & * ! % @ in quotes"}
	}
	root := doc.Content[0]
	if err := plainYAML(root, 0); err != nil {
		return nil, err
	}
	if key, in := entriesIn(root); in != nil {
		if len(root.Content) > 2 {
			return nil, &credsError{root.Line, fmt.Sprintf("no other key is allowed next to %q", key)}
		}
		root = in
	}
	if isText(field(root, "name")) || isText(field(root, "url")) { // one entry
		root = &yaml.Node{Kind: yaml.SequenceNode, Line: root.Line, Content: []*yaml.Node{root}}
	}
	var list []*Registry
	add := func(name string, n *yaml.Node) error {
		r, err := parseRegistry(name, n)
		if err != nil {
			return err
		}
		for _, other := range list {
			if other.Name == r.Name {
				return &credsError{r.line, fmt.Sprintf("registry %q is already defined in line %d", r.Name, other.line)}
			}
		}
		list = append(list, r)
		return nil
	}
	switch {
	case root.Kind == yaml.SequenceNode:
		for _, n := range root.Content {
			if err == nil {
				err = add("", n)
			}
		}
	case root.Kind == yaml.MappingNode:
		for i := 0; i < len(root.Content) && err == nil; i += 2 {
			err = add(root.Content[i].Value, root.Content[i+1])
		}
	case root.Tag != "!!null":
		err = &credsError{root.Line, `neither a list of registries ("- name: …") nor a map of them`}
	}
	return list, err
}

// plainYAML refuses YAML features that a creds.yaml does not need, and duplicate keys.
func plainYAML(n *yaml.Node, depth int) error {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return &credsError{n.Line, "anchors (&) and aliases (*) are not supported; put a value with such a character in quotes"}
	case n.Kind == yaml.ScalarNode && !strings.HasPrefix(n.Tag, "!!"):
		return &credsError{n.Line, "tags (!) are not supported; put a value with such a character in quotes"}
	case depth > 8:
		return &credsError{n.Line, "nested too deeply"}
	}
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if c.Kind != yaml.ScalarNode || c.Tag == "!!merge" {
				return &credsError{c.Line, "a key must be a word"}
			}
			if seen[c.Value] {
				return &credsError{c.Line, "duplicate field"}
			}
			seen[c.Value] = true
		}
		if err := plainYAML(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// entriesIn returns the key and the value that holds the entries, or nil: "registries", or
// "registry" with a list. A mapping below "registry" is an entry of that name.
func entriesIn(root *yaml.Node) (string, *yaml.Node) {
	if in := field(root, "registries"); in != nil {
		return "registries", in
	}
	if in := field(root, "registry"); in != nil && in.Kind == yaml.SequenceNode {
		return "registry", in
	}
	return "", nil
}

// field returns the value of a mapping's key, or nil.
func field(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func isText(n *yaml.Node) bool { return n != nil && n.Kind == yaml.ScalarNode }

var (
	registryName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })
	fieldName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z_-]{0,30}$`) })
)

const knownFields = "name, url, username, password, password_file and token"

// parseRegistry parses one entry. The containing map may provide its name.
func parseRegistry(name string, n *yaml.Node) (*Registry, error) {
	if n.Kind != yaml.MappingNode {
		return nil, &credsError{n.Line, "an entry has the fields " + knownFields + ", each with a colon and a space behind it"}
	}
	r := &Registry{Name: name, line: n.Line}
	var at credsValue
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		if !isText(v) {
			return nil, &credsError{v.Line, "the value of a field is one word or text"}
		}
		value := credsValue{v.Value, v.Line}
		if v.Tag == "!!null" {
			value.text = ""
		}
		switch key.Value {
		case "name":
			if name != "" && value.text != name {
				return nil, &credsError{v.Line, "the entry has another name than the key that it stands under"}
			}
			r.Name = value.text
		case "url":
			at = value
		case "username":
			r.username = value
		case "password":
			r.password = value
		case "password_file":
			r.passwordFile = value
		case "token":
			r.token = value
		default:
			what := "a field that is not known; known are " + knownFields
			if fieldName().MatchString(key.Value) { // anything else may be a value
				what = fmt.Sprintf("%q is not a field; known are %s", key.Value, knownFields)
			}
			return nil, &credsError{key.Line, what}
		}
	}
	if !registryName().MatchString(r.Name) {
		return nil, &credsError{n.Line, "the entry has no name, or one with other signs than letters, digits and . _ -"}
	}
	return r, r.check(at)
}

// check parses the URL and refuses conflicting fields.
func (r *Registry) check(at credsValue) error {
	secrets := 0
	for _, v := range []credsValue{r.password, r.passwordFile, r.token} {
		if v.text != "" {
			secrets++
		}
	}
	switch {
	case r.Name == StaysLocal && ((at.text != "" && at.text != StaysLocal) || secrets > 0):
		return &credsError{r.line, fmt.Sprintf("registry %q is the local store: it cannot have a url or password", StaysLocal)}
	case r.Name == StaysLocal:
		return nil
	case secrets > 1:
		return &credsError{r.line, fmt.Sprintf("registry %q has more than one of password, password_file and token", r.Name)}
	case r.username.text == "" && (r.password.text != "" || r.passwordFile.text != ""):
		return &credsError{r.line, fmt.Sprintf("registry %q has a password but no username", r.Name)}
	case at.text == "":
		return &credsError{r.line, fmt.Sprintf("registry %q has no url", r.Name)}
	}
	if err := r.parseURL(at.text); err != nil {
		return &credsError{at.line, fmt.Sprintf("the url of registry %q: %v", r.Name, err)}
	}
	return nil
}

// parseURL parses [http://|https://]HOST[:PORT][/PATH]. Without a scheme it uses TLS, except
// for this machine.
func (r *Registry) parseURL(text string) error {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	}
	u, err := url.Parse("//" + rest)
	switch {
	case strings.Contains(rest, "@"):
		return errors.New("it contains a user; use the fields username and password")
	case scheme != "" && scheme != "http" && scheme != "https":
		return errors.New("its scheme is not http or https")
	case err != nil || u.Hostname() == "" || strings.ContainsAny(rest, "?#% \t\\"):
		return errors.New("it is not HOST[:PORT][/PATH]")
	}
	r.Host, r.Path = u.Host, strings.Trim(u.Path, "/")
	r.plainHTTP = scheme == "http"
	r.tls = scheme == "https" || (scheme == "" && !isLoopback(u.Hostname()))
	ref := r.Host + "/"
	if r.Path != "" {
		ref += r.Path + "/"
	}
	p, err := parseRef(ref + "x:latest")
	if err == nil && p.Context().RegistryStr() != r.Host && r.Host != "docker.io" {
		err = errors.New("its host has no dot and no port")
	}
	if err != nil && strings.ToLower(r.Path) != r.Path {
		err = errors.New("the path of a registry has no capital letters")
	}
	return err
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
