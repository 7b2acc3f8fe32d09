/*
 * Other names for the functions of table.c, for tests that compile it again with places to stop.
 * Before anything includes table.h; STEPPED(name) makes the name.
 */
#ifndef CUHEAP_STEPPED_TABLE_H
#define CUHEAP_STEPPED_TABLE_H

#define table_add_flags     STEPPED(add_flags)
#define table_begin_freeing STEPPED(begin_freeing)
#define table_copy          STEPPED(copy)
#define table_erase         STEPPED(erase)
#define table_init          STEPPED(init)
#define table_insert        STEPPED(insert)
#define table_live          STEPPED(live)
#define table_mark_freeing  STEPPED(mark_freeing)
#define table_marked        STEPPED(marked)
#define table_refer         STEPPED(refer)
#define table_refer_again   STEPPED(refer_again)
#define table_refer_less    STEPPED(refer_less)
#define table_unmark        STEPPED(unmark)
#define table_walk          STEPPED(walk)

#endif
