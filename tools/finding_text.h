/*
 * The parts of the text report that tell findings, failures and fragmentation. Called by
 * render_table.c; one thread.
 */
#ifndef TOOLS_FINDING_TEXT_H
#define TOOLS_FINDING_TEXT_H

#include "painter.h"

void finding_text_pretended(const struct painter *painter);
void finding_text_findings(const struct painter *painter);
void finding_text_failures(const struct painter *painter);
/* False when memory is exhausted. */
bool finding_text_fragmentation(const struct painter *painter);

#endif
