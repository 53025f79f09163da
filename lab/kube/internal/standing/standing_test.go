package standing

import (
	"strings"
	"testing"
)

const head = `{"apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionPolicy",
	"metadata": {"name": "fleet", "generation": 2}, "status": `

func TestAnObjectStandsWhereItsConditionsSay(t *testing.T) {
	for name, given := range map[string][2]string{
		"not observed": {`{"observedGeneration": -1}}`, "InProgress"},
		"reconciling":  {`{"observedGeneration": 2, "conditions": [{"type": "Reconciling", "status": "True"}]}}`, "InProgress"},
		"stalled":      {`{"observedGeneration": 2, "conditions": [{"type": "Stalled", "status": "True"}]}}`, "Failed"},
		"ready":        {`{"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}}`, "Current"},
	} {
		out := &strings.Builder{}
		if err := tell(strings.NewReader(head+given[0]), out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.Contains(out.String(), `"status":"`+given[1]+`"`) {
			t.Errorf("%s: expected %s, found %s", name, given[1], out.String())
		}
	}
}

func TestWhatIsNoObjectIsRefused(t *testing.T) {
	if err := tell(strings.NewReader("{"), &strings.Builder{}); err == nil {
		t.Error("expected an error")
	}
}
