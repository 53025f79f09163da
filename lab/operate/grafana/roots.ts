// What our dashboards are made of, by the types that Grafana publishes (@grafana/schema, Apache-2.0).
// The package's Panel takes any options; each kind of panel has its own in a package of its own.
import * as dashboard from './node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import * as timeseries from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import * as stat from './node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import * as timeline from './node_modules/@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/types.gen';

type Of<Kind extends string, Options, Custom> = Omit<dashboard.Panel, 'type' | 'options' | 'fieldConfig'> & {
  type: Kind;
  options: Options;
  fieldConfig: {
    defaults: Omit<dashboard.FieldConfig, 'custom'> & { custom?: Custom };
    overrides: dashboard.FieldConfigSource['overrides'];
  };
};

export type Board = dashboard.Dashboard;
export type TimeSeriesPanel = Of<'timeseries', timeseries.Options, timeseries.FieldConfig>;
export type StatPanel = Of<'stat', stat.Options, Record<string, never>>;
export type StateTimelinePanel = Of<'state-timeline', timeline.Options, timeline.FieldConfig>;
