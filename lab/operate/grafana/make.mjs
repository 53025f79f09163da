// Writes dashboard.schema.json from the types in roots.ts. Run it in a copy of this folder, so that nothing is left here:
//   cp roots.ts make.mjs /tmp/schema && cd /tmp/schema && npm install ts-json-schema-generator@2.4.0 @grafana/schema@13.2.3
//   node make.mjs > …/lab/operate/grafana/dashboard.schema.json
import { writeFileSync } from 'node:fs';
import { createGenerator } from 'ts-json-schema-generator';

writeFileSync('tsconfig.json', JSON.stringify({
  compilerOptions: { module: 'esnext', moduleResolution: 'bundler', target: 'es2022', strict: true, skipLibCheck: true },
  files: ['roots.ts'],
}));
const definitions = {};
for (const type of ['Board', 'TimeSeriesPanel', 'StatPanel', 'StateTimelinePanel']) {
  const config = { path: 'roots.ts', tsconfig: 'tsconfig.json', type, skipTypeCheck: true };
  const found = createGenerator(config).createSchema(type).definitions;
  const own = (name) => (name === type ? type : `${type}.${name}`);
  const text = JSON.stringify(found, (key, value) => (key === 'description' && typeof value === 'string' ? undefined : value));
  const renamed = JSON.parse(text.replace(/"#\/definitions\/([^"]+)"/g, (_, name) => `"#/definitions/${own(decodeURIComponent(name))}"`));
  for (const [name, value] of Object.entries(renamed)) definitions[own(name)] = value;
}
const kinds = ['TimeSeriesPanel', 'StatPanel', 'StateTimelinePanel'].map((name) => ({ $ref: `#/definitions/${name}` }));
definitions['Board.Dashboard'].properties.panels.items = { anyOf: [{ $ref: '#/definitions/Board.RowPanel' }, ...kinds] };
// A data source's annotation has fields of its own beside these.
definitions['Board.AnnotationQuery'].additionalProperties = true;
console.log(JSON.stringify({
  $schema: 'http://json-schema.org/draft-07/schema#',
  $comment: 'Made by make.mjs from @grafana/schema 13.2.3 (Apache-2.0, Grafana Labs); do not edit.',
  $ref: '#/definitions/Board.Dashboard',
  definitions,
}));
