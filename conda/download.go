package conda

import (
	"context"
	"fmt"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/layer"
	"hpcc/conda/pip"
	"hpcc/store"
)

// A Download is an archive that an installation of a plan fetches.
type Download struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Build   string `json:"build,omitempty"` // of packages of conda
	URL     string `json:"url"`             // without credentials
	Size    int64  `json:"size"`            // bytes; 0 where no index says
	Here    bool   `json:"cached"`          // in the store already
}

// Downloads lists what Layers would fetch, and chooses wheels as it does, but
// for one thing: what the packages of conda bring for pip is told by their
// names and dependencies, not by their files. Notes are what is to be told of it.
func (p *Plan) Downloads(ctx context.Context, s *store.Store, o Options) (list []Download, notes []string, err error) {
	dir := layer.Archives(s)
	for _, r := range p.pkgs {
		_, _, here := r.Kept(dir)
		list = append(list, Download{r.Name, r.Version, r.Build, fetch.Bare(r.URL), r.Size, here})
	}
	e := p.export
	if len(e.Pip) == 0 {
		return list, nil, nil
	}
	t, err := p.pipTarget()
	if err == nil {
		err = linkPip(t, o)
	}
	if err != nil {
		return nil, nil, &exports.LineError{File: e.File, Line: e.Pip[0].Line, Err: err}
	}
	po := pipOptions(e, o)
	if po.Build != nil {
		po.Build.Step = nil // what sources need is known only if they say it
	}
	wheels, err := pip.Resolve(ctx, s, e.Pip, *t, po)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range wheels.Archives() {
		_, _, here := r.Kept(dir)
		list = append(list, Download{wheels.Wheels[i].Name, wheels.Wheels[i].Version, "", fetch.Bare(r.URL), r.Size, here})
	}
	return list, append(wheels.Notes, fmt.Sprintf("%s: which wheels are needed besides is known for sure only when conda's packages are here", e.File)), nil
}
