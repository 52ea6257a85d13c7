import { autocompletion, closeBrackets, completionKeymap, type CompletionContext } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { json } from '@codemirror/lang-json';
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from '@codemirror/language';
import { Compartment, EditorState } from '@codemirror/state';
import { EditorView, keymap } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { useEffect, useRef } from 'react';
import { completeJson, type JsonSchema, type KnownValues } from './complete-json.ts';

/** An editor for a JSON document that suggests the names and values that the schema allows at the cursor. */
export function JsonEditor(props: {
  label: string;
  value: string;
  onChange: (text: string) => void;
  schema: JsonSchema;
  /** Values that a member can have, by the member's name, such as the slugs of virtual keys. */
  values: KnownValues;
  isInvalid: boolean;
}) {
  const { label, value, isInvalid } = props;
  const parent = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const attributes = useRef(new Compartment());
  const latest = useRef(props);
  latest.current = props;

  useEffect(() => {
    const complete = (context: CompletionContext) =>
      completeJson(context, latest.current.schema, latest.current.values);
    const outside = parent.current as HTMLDivElement;
    // In a shadow root, the editor's styles are style sheets that a script creates, which the content security policy
    // allows. In the page, they would be style elements, which it blocks.
    const root = outside.shadowRoot ?? outside.attachShadow({ mode: 'open' });
    const made = new EditorView({
      parent: root,
      root,
      state: EditorState.create({
        doc: latest.current.value,
        extensions: [
          json(),
          history(),
          indentOnInput(),
          bracketMatching(),
          closeBrackets(),
          autocompletion({ override: [complete], icons: false }),
          syntaxHighlighting(colours),
          theme,
          // Tab leaves the editor, so that keyboard users are not trapped in it.
          keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap]),
          EditorView.lineWrapping,
          attributes.current.of([]),
          EditorView.updateListener.of(({ docChanged, state }) => {
            if (docChanged) latest.current.onChange(state.doc.toString());
          }),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
  }, []);

  useEffect(() => {
    const own = { 'aria-label': label, tabindex: '0', 'aria-invalid': String(isInvalid), spellcheck: 'false' };
    const effects = attributes.current.reconfigure(EditorView.contentAttributes.of(own));
    view.current?.dispatch({ effects });
  }, [label, isInvalid]);

  useEffect(() => {
    const shown = view.current?.state.doc.toString();
    if (shown !== undefined && shown !== value)
      view.current?.dispatch({ changes: { from: 0, to: shown.length, insert: value } });
  }, [value]);

  return <div ref={parent} />;
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: 'var(--accent)' },
  { tag: tags.string, color: 'var(--good)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--info)' },
]);

const theme = EditorView.theme({
  '&': {
    minHeight: '330px',
    maxHeight: '520px',
    color: 'var(--text)',
    background: 'var(--surface)',
    border: '1px solid var(--line-strong)',
    borderRadius: '7px',
    fontSize: '12.5px',
    fontWeight: '400',
  },
  '&.cm-focused': { outline: '2px solid var(--focus)', outlineOffset: '1px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', overflow: 'auto' },
  '.cm-content': { caretColor: 'var(--text)' },
  '&.cm-focused .cm-matchingBracket': { background: 'var(--accent-soft)' },
  '.cm-tooltip': { color: 'var(--text)', background: 'var(--surface)', border: '1px solid var(--line-strong)' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul': { fontFamily: 'var(--mono)' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]': {
    color: 'var(--on-accent)',
    background: 'var(--accent)',
  },
  '.cm-completionDetail': { color: 'var(--muted)' },
  'li[aria-selected] .cm-completionDetail': { color: 'inherit' },
});
