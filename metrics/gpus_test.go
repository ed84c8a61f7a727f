package metrics

import "testing"

func TestGPUTime(t *testing.T) {
	sample := func(at float64, busy ...float64) Sample {
		s := Sample{At: at}
		for i, b := range busy {
			s.GPUs = append(s.GPUs, GPUSample{Index: i, Utilisation: b})
		}
		return s
	}
	tests := []struct {
		name string
		in   Record
		want GPUTime
	}{
		{"nothing measured", Record{Footer: &Footer{Wall: 100}}, GPUTime{}},
		{"two, one of them idle", Record{Samples: []Sample{sample(10, 100, 0), sample(20, 50, 3)}}, GPUTime{Measured: 40, Busy: 15.3, Idle: 20}},
		{"the last sample holds to the end", Record{Samples: []Sample{sample(10, 100)}, Footer: &Footer{Wall: 30, GPUs: []GPUUse{{Index: 0, Mean: 100}}}}, GPUTime{Measured: 30, Busy: 30}},
		{"a tool that ended", Record{Samples: []Sample{sample(1), sample(10, 100), sample(20), sample(30)}, Footer: &Footer{Wall: 36000, GPUs: []GPUUse{{Index: 0, Mean: 100}}}}, GPUTime{Measured: 10, Busy: 10}},
		{"a tool that was silent for an hour", Record{Samples: []Sample{sample(10, 100), sample(20), sample(3600), sample(3610, 50)}, Footer: &Footer{Wall: 3620}}, GPUTime{Measured: 30, Busy: 20}},
		{"a GPU that was reported for a time", Record{Samples: []Sample{sample(10, 100, 100), sample(20, 100)}, Footer: &Footer{Wall: 40, GPUs: []GPUUse{{Index: 0, Mean: 100}, {Index: 1, Mean: 100}}}}, GPUTime{Measured: 50, Busy: 50}},
		{"a footer alone", Record{Footer: &Footer{Wall: 60, GPUs: []GPUUse{{Index: 0, Mean: 1}, {Index: 1, Mean: 80}}}}, GPUTime{Measured: 120, Busy: 48.6, Idle: 60}},
		{"a part of a GPU with unknown use", Record{Samples: []Sample{{At: 10, GPUs: []GPUSample{{Unknown: true}}}}, Footer: &Footer{Wall: 30, GPUs: []GPUUse{{}}}}, GPUTime{}},
		{"the same in a footer", Record{Footer: &Footer{Wall: 30, GPUs: []GPUUse{{Unknown: true}, {Memory: 8 << 30}}}}, GPUTime{Measured: 30, Idle: 30}},
		{"impossible values", Record{Samples: []Sample{sample(10, -5), sample(5, 100), sample(20, 900)}}, GPUTime{Measured: 20, Busy: 10, Idle: 10}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := test.in.GPUTime()
			if d := got.Busy - test.want.Busy; got.Measured != test.want.Measured || got.Idle != test.want.Idle || d > 1e-9 || d < -1e-9 {
				t.Errorf("GPUTime() = %+v; want %+v", got, test.want)
			}
		})
	}
}
