package argo

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// TestArgoBusy: an Argo server that is busy is asked again, but not to do something twice.
func TestArgoBusy(t *testing.T) {
	t.Setenv(argoToken, "sesame")
	asked := map[string]int{}
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked[r.Method]++; asked[r.Method] == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		say(200, `{"metadata":{"name":"a"}}`)(w, r)
	}))
	defer here.Close()
	s, err := argoAt(t, map[string]string{ServerVariable: here.URL})
	testenv.Check(t, err)
	ctx := web.With(t.Context(), web.Limits{Backoff: time.Millisecond})
	if _, err := s.get(ctx, "a"); err != nil || asked["GET"] != 2 {
		t.Errorf("get: %v after %d requests", err, asked["GET"])
	}
	if _, err := s.create(ctx, &item{}, false); err == nil || asked["POST"] != 1 {
		t.Errorf("create: %v after %d requests; want an error after 1", err, asked["POST"])
	}
}
